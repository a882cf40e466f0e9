#include <crossrank/concat.hpp>

#include <string>

#include "lib/tensor/copy_memory.hpp"
#include "lib/tensor/strided_runs.hpp"

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

/// Copies `part` into `out`, from index `begin` of dimension `dim` on.
void place(Tensor& out, std::span<std::byte> to, std::int64_t dim, std::int64_t begin, Tensor const& part) {
  auto const length = part.shape()[static_cast<std::size_t>(dim)];
  auto const runs = slice_runs(out, dim, begin, length, "concat").runs;
  auto const from = part.bytes();
  for (std::size_t run = 0; run < runs.count && runs.run_bytes > 0; ++run) {
    copy_memory(to.data() + runs.start(run), from.data() + run * runs.run_bytes, runs.run_bytes);
  }
}

}  // namespace

Tensor slice(Tensor const& tensor, Dim dim, std::int64_t begin, std::int64_t length) {
  auto const [shape, runs] = slice_runs(tensor, dim.dim, begin, length, "slice");
  auto const from = tensor.bytes();
  auto out = Tensor::empty(shape, tensor.dtype());
  auto const to = out.mutable_bytes();
  for (std::size_t run = 0; run < runs.count && runs.run_bytes > 0; ++run) {
    copy_memory(to.data() + run * runs.run_bytes, from.data() + runs.start(run), runs.run_bytes);
  }
  return out;
}

Tensor concat(std::span<Tensor const> parts, Dim dim) {
  if (parts.empty()) throw UsageError({.operation = "concat", .message = "there are no parts"});
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].defined()) refuse_part(i, "is undefined", parts.front(), parts[i]);
  }
  auto const at = resolve_dim(parts.front().shape(), dim.dim, "concat");
  auto out = Tensor::empty(joined_shape(parts, at), parts.front().dtype());
  auto const to = out.mutable_bytes();
  std::int64_t begin = 0;
  for (auto const& part : parts) {
    place(out, to, static_cast<std::int64_t>(at), begin, part);
    begin += part.shape()[at];
  }
  return out;
}

}  // namespace crossrank
