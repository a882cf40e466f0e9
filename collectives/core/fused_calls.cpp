#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/core/agreed_arguments.hpp"
#include "collectives/core/call_builder.hpp"
#include "collectives/core/own_part.hpp"
#include "lib/tensor/device_tensor.hpp"
#include "lib/tensor/tensor_checks.hpp"

/// Calls on several tensors in one operation. Tensors that follow each other in memory are used where they are; others
/// go through a buffer that the call owns.
namespace crossrank {
namespace {

using algorithms::Call;
using spi::OpKind;

std::size_t bytes_of(std::span<Tensor const> tensors) {
  std::size_t bytes = 0;
  for (auto const& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

/// Whether the tensors are one run of bytes of one storage.
bool are_adjacent(std::span<Tensor const> tensors) {
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    auto const& before = tensors[i - 1];
    if (tensors[i].storage() != before.storage() || tensors[i].data() != before.data() + before.nbytes()) return false;
  }
  return true;
}

/// Adds the dtypes and shapes of all tensors to the arguments that the ranks compare. Their shape is the number of all
/// elements.
AgreedArguments& add_shapes(AgreedArguments& arguments, std::span<Tensor const> tensors) {
  std::vector<std::int64_t> numbers{static_cast<std::int64_t>(tensors.size())};
  for (auto const& tensor : tensors) {
    auto const& shape = tensor.shape();
    numbers.push_back(static_cast<std::int64_t>(tensor.dtype()));
    numbers.push_back(static_cast<std::int64_t>(shape.size()));
    numbers.insert(numbers.end(), shape.begin(), shape.end());
  }
  std::int64_t elements = 0;
  for (auto const& tensor : tensors) elements += tensor.numel();
  return arguments.shape({elements}).rows(numbers);
}

/// Returns a buffer on the device of the tensors, for tensors that do not follow each other in memory.
///
/// Without memory for it, returns an undefined tensor, and the call throws as it begins: the other ranks wait for this
/// one there, and get the error too.
Tensor make_buffer(Call& call, std::size_t bytes, Device device) {
  Shape const shape{static_cast<std::int64_t>(bytes)};
  try {
    return Tensor::empty(shape, Dtype::u8, device);
  } catch (UnavailableError const& e) {
    if (device.kind == Device::Kind::cpu) {
      call.pack = [failure = NoBufferMemory{e}] { throw failure; };
      return {};
    }
    call.pack = [failure = std::current_exception()] { std::rethrow_exception(failure); };
    return {};
  }
}

/// Copies between tensors and a buffer that holds, for each of `parts`, that part of every tensor in turn.
template <class Copy>
void for_each_part(std::span<Tensor const> tensors, std::size_t parts, Copy&& copy) {
  std::size_t at = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    for (auto const& tensor : tensors) {
      auto const bytes = tensor.nbytes() / parts;
      if (bytes != 0) copy(tensor.data() + part * bytes, at, bytes);
      at += bytes;
    }
  }
}

/// The bytes of one tensor inside itself, and inside a buffer of that layout.
struct TensorRuns {
  Tensor const& tensor;
  StridedRuns inside;
  StridedRuns buffered;
};

/// Copies on a GPU in the order of its current stream: one strided copy per tensor.
template <class Copy>
void for_each_tensor(std::span<Tensor const> tensors, std::size_t parts, Copy&& copy) {
  auto const stride = bytes_of(tensors) / parts;
  std::size_t at = 0;
  for (auto const& tensor : tensors) {
    auto const bytes = tensor.nbytes() / parts;
    TensorRuns const runs{.tensor = tensor,
                          .inside = {.count = parts, .run_bytes = bytes, .stride_bytes = bytes},
                          .buffered = {.count = parts, .run_bytes = bytes, .first_byte = at, .stride_bytes = stride}};
    if (bytes != 0) copy(runs);
    at += bytes;
  }
}

void pack(Tensor const& buffer, std::span<Tensor const> tensors, std::size_t parts) {
  if (on_gpu(buffer)) {
    return for_each_tensor(tensors, parts, [&](TensorRuns const& runs) {
      copy_runs_on_gpu(buffer, runs.buffered, runs.tensor, runs.inside, "pack");
    });
  }
  for_each_part(tensors, parts, [&](std::byte const* from, std::size_t at, std::size_t bytes) {
    std::memcpy(buffer.data() + at, from, bytes);
  });
}

void unpack(Tensor const& buffer, std::span<Tensor const> tensors, std::size_t parts) {
  if (on_gpu(buffer)) {
    return for_each_tensor(tensors, parts, [&](TensorRuns const& runs) {
      copy_runs_on_gpu(runs.tensor, runs.inside, buffer, runs.buffered, "unpack");
    });
  }
  for_each_part(tensors, parts,
                [&](std::byte* to, std::size_t at, std::size_t bytes) { std::memcpy(to, buffer.data() + at, bytes); });
}

/// The bytes of each part of each tensor, by tensor and part.
using PartBytes = std::vector<std::vector<std::size_t>>;

/// Copies parts of different sizes out of a buffer that holds, for each part, that part of every tensor in turn.
void unpack(Tensor const& buffer, std::span<Tensor const> tensors, PartBytes const& parts) {
  std::vector<std::size_t> begins(tensors.size());
  std::size_t at = 0;
  for (std::size_t part = 0; part < parts.front().size(); ++part) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto const bytes = parts[i][part];
      auto const begin = std::exchange(begins[i], begins[i] + bytes);
      auto const from = std::exchange(at, at + bytes);
      if (bytes == 0) continue;
      if (on_gpu(buffer)) {
        copy_runs_on_gpu(tensors[i], {.run_bytes = bytes, .first_byte = begin}, buffer,
                         {.run_bytes = bytes, .first_byte = from}, "unpack");
      } else {
        std::memcpy(tensors[i].data() + begin, buffer.data() + from, bytes);
      }
    }
  }
}

std::vector<Tensor> list_of(std::span<Tensor const> tensors) { return {tensors.begin(), tensors.end()}; }

/// Sets the input: the tensors themselves if they are one run of bytes in the order of the buffer.
void set_input(Call& call, std::span<Tensor const> tensors, std::size_t parts, char const* operation) {
  for (auto const& tensor : tensors) require_usable(tensor, operation);
  auto const bytes = bytes_of(tensors);
  if ((parts == 1 && are_adjacent(tensors)) || tensors.size() == 1) {
    call.in = {.bytes = {tensors.front().data(), bytes}, .owner = tensors.front().storage()};
    return;
  }
  auto const buffer = make_buffer(call, bytes, tensors.front().device());
  if (!buffer.defined()) return;
  call.in = {.bytes = {buffer.data(), bytes}, .owner = buffer.storage()};
  call.pack = [buffer, list = list_of(tensors), parts] { pack(buffer, list, parts); };
}

/// Sets the output of the call to one run of bytes: that of the tensors, if they are one, else a buffer. Returns the
/// buffer, or an undefined tensor when the call needs none.
Tensor set_bytes_of_output(Call& call, std::span<Tensor> tensors, bool are_one_run) {
  auto const bytes = bytes_of(tensors);
  if (are_one_run) {
    call.out = {.bytes = {tensors.front().data(), bytes}, .owner = tensors.front().storage()};
    return {};
  }
  auto buffer = make_buffer(call, bytes, tensors.front().device());
  if (!buffer.defined()) return {};
  call.out = {.bytes = {buffer.data(), bytes}, .owner = buffer.storage()};
  return buffer;
}

/// Sets the output of the call as `set_input` sets the input. Returns the buffer, or an undefined tensor.
Tensor set_output(Call& call, std::span<Tensor> tensors, std::size_t parts) {
  bool const are_one_run = (parts == 1 && are_adjacent(tensors)) || tensors.size() == 1;
  auto buffer = set_bytes_of_output(call, tensors, are_one_run);
  if (buffer.defined()) call.unpack = [buffer, list = list_of(tensors), parts] { unpack(buffer, list, parts); };
  return buffer;
}

/// Sets the output of a call whose ranks give parts of different sizes.
void set_uneven_output(Call& call, std::span<Tensor> tensors, PartBytes parts) {
  auto const buffer = set_bytes_of_output(call, tensors, tensors.size() == 1);
  if (!buffer.defined()) return;
  call.unpack = [buffer, list = list_of(tensors), parts = std::move(parts)] { unpack(buffer, list, parts); };
}

}  // namespace

void CallBuilder::require_pairs(std::size_t outs, std::size_t ins, char const* operation) const {
  if (ins == 0) refuse(operation, "the list of tensors is empty", "at least one tensor");
  if (outs != ins) {
    refuse(operation, "the lists of results and inputs differ in length", std::to_string(ins) + " results",
           std::to_string(outs));
  }
}

void CallBuilder::require_same_dtype(std::span<Tensor const> tensors, char const* operation) const {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    require_tensor(tensors[i], operation);
    if (tensors[i].dtype() == tensors.front().dtype()) continue;
    refuse(operation, "tensor " + std::to_string(i) + " has another dtype than the first",
           std::string(name_of(tensors.front().dtype())), std::string(name_of(tensors[i].dtype())));
  }
}

void CallBuilder::require_fusable(std::span<Tensor const> tensors, char const* operation) const {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    require_tensor(tensors[i], operation);
    if (tensors[i].device() == tensors.front().device()) continue;
    refuse(operation, "tensor " + std::to_string(i) + " is on another device than the first",
           to_string(tensors.front().device()), to_string(tensors[i].device()));
  }
}

Call CallBuilder::all_reduce(std::span<Tensor> tensors, ReduceOp op, ReduceOrder order) const {
  require_pairs(tensors.size(), tensors.size(), "all_reduce");
  require_fusable(tensors, "all_reduce");
  require_same_dtype(tensors, "all_reduce");
  spi::Reduction const reduction{tensors.front().dtype(), op};
  for (auto const& tensor : tensors) require_writable_here(tensor, "all_reduce");
  require_op(reduction.dtype, op, "all_reduce");
  Call call{.reduction = reduction};
  auto const buffer = set_output(call, tensors, 1);
  call.in = {.bytes = call.out.bytes, .owner = call.out.owner};
  if (buffer.defined()) call.pack = [buffer, list = list_of(tensors)] { pack(buffer, list, 1); };
  AgreedArguments arguments(check_);
  add_shapes(arguments.device(tensors.front().device()).dtype(reduction.dtype).op(op).order(order), tensors)
      .into(call, OpKind::all_reduce);
  return call;
}

Call CallBuilder::reduce_scatter(std::span<Tensor> outs, std::span<Tensor const> ins, ReduceOp op,
                                 ReduceOrder order) const {
  require_pairs(outs.size(), ins.size(), "reduce_scatter");
  require_fusable(ins, "reduce_scatter");
  require_fusable(outs, "reduce_scatter");
  require_same_dtype(ins, "reduce_scatter");
  for (std::size_t i = 0; i < ins.size(); ++i) {
    require_whole(ins[i], outs[i], "reduce_scatter");
    require_apart(outs[i], ins[i], "reduce_scatter");
  }
  spi::Reduction const reduction{ins.front().dtype(), op};
  for (auto const& out : outs) require_writable_here(out, "reduce_scatter");
  require_op(reduction.dtype, op, "reduce_scatter");
  Call call{.counts = equal_counts(bytes_of(outs)), .reduction = reduction};
  set_input(call, ins, ranks(), "reduce_scatter");
  static_cast<void>(set_output(call, outs, 1));
  AgreedArguments arguments(check_);
  add_shapes(arguments.device(outs.front().device()).dtype(reduction.dtype).op(op).order(order), outs)
      .into(call, OpKind::reduce_scatterv, "reduce_scatter");
  return call;
}

Call CallBuilder::all_gather(std::span<Tensor> outs, std::span<Tensor const> ins) const {
  require_pairs(outs.size(), ins.size(), "all_gather");
  require_fusable(ins, "all_gather");
  require_fusable(outs, "all_gather");
  for (auto const& out : outs) require_writable_here(out, "all_gather");
  for (std::size_t i = 0; i < ins.size(); ++i) {
    require_whole(outs[i], ins[i], "all_gather");
    require_own_part(outs[i], ins[i], rank() * ins[i].nbytes(), "all_gather");
  }
  Call call{.counts = equal_counts(bytes_of(ins))};
  set_input(call, ins, 1, "all_gather");
  static_cast<void>(set_output(call, outs, ranks()));
  AgreedArguments arguments(check_);
  add_shapes(arguments.device(ins.front().device()), ins).into(call, OpKind::all_gatherv, "all_gather");
  return call;
}

Call CallBuilder::all_gatherv(std::span<Tensor> outs, std::span<Tensor const> ins, Rows rows,
                              char const* called) const {
  require_pairs(outs.size(), ins.size(), called);
  require_fusable(ins, called);
  require_fusable(outs, called);
  for (auto const& out : outs) require_writable_here(out, called);
  AgreedArguments arguments(check_);
  arguments.device(ins.front().device()).rows(rows.rows);
  Call call{.counts = equal_counts(0)};
  PartBytes parts;
  for (std::size_t i = 0; i < ins.size(); ++i) {
    auto division = divide(rows.rows, ins[i], called);
    require_rows(ins[i], rows.rows[rank()], called);
    require_rows(outs[i], division.rows, called);
    require_same_rows(ins[i], outs[i], called);
    require_own_part(outs[i], ins[i], before(division.counts), called);
    for (std::size_t r = 0; r < ranks(); ++r) call.counts[r] += division.counts[r];
    parts.push_back(std::move(division.counts));
    arguments.dtype(ins[i].dtype()).row(ins[i].shape());
  }
  set_input(call, ins, 1, called);
  if (std::adjacent_find(rows.rows.begin(), rows.rows.end(), std::not_equal_to<>()) == rows.rows.end()) {
    static_cast<void>(set_output(call, outs, ranks()));
  } else {
    set_uneven_output(call, outs, std::move(parts));
  }
  arguments.into(call, OpKind::all_gatherv, called);
  return call;
}

}  // namespace crossrank
