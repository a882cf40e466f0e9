#include <crossrank/tensor/concat.hpp>

#include <string>

#include "lib/tensor/copy_memory.hpp"
#include "lib/tensor/device_tensor.hpp"
#include "lib/tensor/strided_runs.hpp"
#include "lib/tensor/tensor_checks.hpp"

namespace crossrank {
namespace {

[[noreturn]] void refuse_part(std::size_t index, char const* message, Tensor const& first, Tensor const& part) {
  throw UsageError({.operation = "concat",
                    .message = "part " + std::to_string(index) + " " + message,
                    .expected = to_string(first),
                    .got = to_string(part)});
}

/// Returns the shape of the joined tensor. `UsageError` when the parts do not fit.
Shape joined_shape(std::span<Tensor const> parts, std::size_t dim) {
  auto const& first = parts.front();
  std::int64_t length = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    auto const& part = parts[i];
    if (part.device() != first.device()) refuse_part(i, "is not on the device of part 0", first, part);
    if (part.dtype() != first.dtype()) refuse_part(i, "does not have the dtype of part 0", first, part);
    if (part.shape().size() != first.shape().size())
      refuse_part(i, "does not have the number of dimensions of part 0", first, part);
    if (part.shape().with(dim, 0) != first.shape().with(dim, 0))
      refuse_part(i, "differs from part 0 in another dimension", first, part);
    if (__builtin_add_overflow(length, part.shape()[dim], &length))
      refuse_part(i, "makes the joined length overflow", first, part);
  }
  return first.shape().with(dim, length);
}

/// Returns the same number and length of runs, one after the other.
StridedRuns packed(StridedRuns const& runs) {
  return {.count = runs.count, .run_bytes = runs.run_bytes, .first_byte = 0, .stride_bytes = runs.run_bytes};
}

/// Copies runs of bytes between two tensors of one device.
void copy_runs(Tensor& to, StridedRuns const& to_runs, Tensor const& from, StridedRuns const& from_runs,
               char const* operation) {
  if (to_runs.bytes() == 0) return;
  require_usable(from, operation);
  if (on_gpu(to) || on_gpu(from)) return copy_runs_on_gpu(to, to_runs, from, from_runs, operation);
  auto* const out = to.mutable_bytes().data();
  auto const* const in = from.bytes().data();
  for (std::size_t run = 0; run < to_runs.count; ++run) {
    copy_memory(out + to_runs.start(run), in + from_runs.start(run), to_runs.run_bytes);
  }
}

}  // namespace

Tensor slice(Tensor const& tensor, Dim dim, std::int64_t begin, std::int64_t length) {
  auto const [shape, runs] = slice_runs(tensor, dim.dim, begin, length, "slice");
  auto out = Tensor::empty(shape, tensor.dtype(), tensor.device());
  copy_runs(out, packed(runs), tensor, runs, "slice");
  return out;
}

Tensor concat(std::span<Tensor const> parts, Dim dim) {
  if (parts.empty()) throw UsageError({.operation = "concat", .message = "there are no parts"});
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].defined()) refuse_part(i, "is undefined", parts.front(), parts[i]);
  }
  auto const at = resolve_dim(parts.front().shape(), dim.dim, "concat");
  auto out = Tensor::empty(joined_shape(parts, at), parts.front().dtype(), parts.front().device());
  std::int64_t begin = 0;
  for (auto const& part : parts) {
    auto const length = part.shape()[at];
    auto const runs = slice_runs(out, static_cast<std::int64_t>(at), begin, length, "concat").runs;
    copy_runs(out, runs, part, packed(runs), "concat");
    begin += length;
  }
  return out;
}

}  // namespace crossrank
