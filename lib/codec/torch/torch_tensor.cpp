#include "lib/codec/torch/torch_tensor.hpp"

#include <limits>
#include <utility>

#include "lib/codec/io/checked_size.hpp"
#include "lib/codec/torch/pickle/torch_dtype.hpp"

namespace crossrank::codec {
namespace {

__extension__ using Wide = __int128;

bool is_sequence(PickleValue value) noexcept { return value.is(PickleKind::tuple) || value.is(PickleKind::list); }

/// Reads a tuple of lengths or strides. Returns false for any other value.
bool take_numbers(PickleValue value, std::vector<std::int64_t>& out) {
  if (!is_sequence(value) || value.size() > Shape::max_rank) return false;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (!value[i].is(PickleKind::integer) || value[i].integer() < 0) return false;
    out.push_back(value[i].integer());
  }
  return true;
}

/// Returns whether all elements lie inside a storage of `bytes` bytes.
bool fits(StridedView const& view, std::int64_t offset, std::uint64_t bytes) noexcept {
  Wide last = offset;
  for (std::size_t dim = 0; dim < view.lengths.size(); ++dim) {
    if (view.lengths[dim] == 0) return true;
    // The product of two numbers below 2^63 fits. A sum of several may not, so stop as soon as it is too large.
    last += static_cast<Wide>(view.lengths[dim] - 1) * view.strides[dim];
    if (last > std::numeric_limits<std::int64_t>::max()) return false;
  }
  return (last + 1) * static_cast<Wide>(view.element_bytes) <= static_cast<Wide>(bytes);
}

/// Returns whether it is a conjugated or negated view, whose bytes are not its values.
bool has_lazy_bits(PickleValue metadata) noexcept {
  for (auto const* key : {"conj", "neg"}) {
    auto const bit = metadata.find(key);
    if (bit && bit->is(PickleKind::boolean) && bit->boolean()) return true;
  }
  return false;
}

Shape logical_shape(std::vector<std::int64_t> lengths, bool pairs) {
  if (!pairs) return Shape(lengths);
  if (lengths.empty()) lengths.push_back(1);
  lengths.back() *= 2;
  return Shape(lengths);
}

/// Returns why tensors of this function are not read; else an empty text.
std::string_view why_unsupported(std::string_view function) noexcept {
  if (function == "torch._utils._rebuild_meta_tensor_no_storage") return "it has no data: it was on the meta device";
  if (function.starts_with("torch._utils._rebuild_sparse_")) return "it is sparse: save tensor.to_dense()";
  if (function == "torch._utils._rebuild_nested_tensor")
    return "it is a nested tensor: save the tensors of tensor.unbind()";
  if (function == "torch._utils._rebuild_qtensor")
    return "it is one of torch's quantized tensors: save tensor.dequantize(), or tensor.int_repr() and its scales";
  return {};
}

/// Returns the dtype of a tensor: that of its storage's class, or the last argument for a storage without a class.
TorchDtype const* dtype_of_tensor(TorchRebuild const& rebuild, TorchStorage const& storage, std::string& problem) {
  auto const* const typed = find_torch_storage(storage.cls);
  if (rebuild.function != "torch._utils._rebuild_tensor_v3") {
    if (typed == nullptr) problem = "the storage has no element type";
    return typed;
  }
  if (rebuild.arguments.size() < 7 || !rebuild.arguments[6].is(PickleKind::global)) {
    problem = "the tensor has no dtype";
    return nullptr;
  }
  auto const* const dtype = find_torch_dtype(rebuild.arguments[6].text());
  if (dtype == nullptr) {
    problem = "the tensor's dtype is not one of torch's";
  } else if (storage.cls != untyped_storage && typed != dtype) {
    problem = "storage and tensor have different element types";
  }
  return dtype;
}

void take_extent(TorchRebuild const& rebuild, TorchStorage const& storage, TorchDtype const& dtype, TorchTensor& tensor,
                 std::string& problem) {
  auto const& arguments = rebuild.arguments;
  auto& view = tensor.view;
  if (!arguments[1].is(PickleKind::integer) || arguments[1].integer() < 0 ||
      !take_numbers(arguments[2], view.lengths) || !take_numbers(arguments[3], view.strides) ||
      view.lengths.size() != view.strides.size()) {
    problem = "the tensor's offset, lengths or strides are invalid numbers";
    return;
  }
  view.element_bytes = dtype.element_bytes;
  std::uint64_t bytes = 0;
  if (checked_byte_size(view.lengths, dtype.element_bytes * 8, bytes) != SizeStatus::fits ||
      bytes > (std::uint64_t{1} << 61U) || !fits(view, arguments[1].integer(), storage.bytes)) {
    problem = "the tensor goes past the end of its storage of " + std::to_string(storage.bytes) + " bytes";
    return;
  }
  // Without elements any offset is valid.
  view.first = bytes == 0 ? 0 : static_cast<std::uint64_t>(arguments[1].integer()) * dtype.element_bytes;
  tensor.nbytes = bytes;
  for (auto const length : view.lengths) {
    if (length > std::numeric_limits<std::int64_t>::max() / 2) problem = "the tensor has a length that is too large";
  }
  auto const metadata = rebuild.function == "torch._utils._rebuild_tensor_v3" ? std::size_t{7} : std::size_t{6};
  if (arguments.size() > metadata && has_lazy_bits(arguments[metadata]))
    tensor.unsupported = "it is a conjugated or negated view: save tensor.resolve_conj().resolve_neg()";
}

}  // namespace

std::optional<TorchRebuild> find_rebuild(PickleValue value) noexcept {
  if (!value.is(PickleKind::call) || !value[0].is(PickleKind::global)) return std::nullopt;
  TorchRebuild rebuild{value[0].text(), value[1]};
  if (rebuild.function == "torch._tensor._rebuild_from_type_v2") {
    if (rebuild.arguments.size() < 3 || !rebuild.arguments[0].is(PickleKind::global) ||
        !rebuild.arguments[2].is(PickleKind::tuple))
      return std::nullopt;
    rebuild = {rebuild.arguments[0].text(), rebuild.arguments[2]};
  }
  auto const known = rebuild.function.starts_with("torch._utils._rebuild_") || wraps_tensor(rebuild);
  return known ? std::optional(rebuild) : std::nullopt;
}

bool wraps_tensor(TorchRebuild const& rebuild) noexcept {
  return rebuild.function == "torch._utils._rebuild_parameter" ||
         rebuild.function == "torch._utils._rebuild_parameter_with_state" ||
         rebuild.function == "torch.nn.parameter.Parameter";
}

TorchTensor describe_tensor(TorchRebuild const& rebuild, TorchStorage const* storage, std::uint32_t number,
                            std::string& problem) {
  TorchTensor tensor;
  tensor.storage = number;
  if (auto const why = why_unsupported(rebuild.function); !why.empty()) {
    tensor.unsupported = why;
    return tensor;
  }
  if (storage == nullptr || rebuild.arguments.size() < 4) {
    problem = "a tensor is not made from a storage, an offset, lengths and strides";
    return tensor;
  }
  auto const* const dtype = dtype_of_tensor(rebuild, *storage, problem);
  if (!problem.empty()) return tensor;
  if (!dtype->dtype) {
    tensor.unsupported = "its dtype " + std::string(dtype->name) + " is not supported: convert it before saving";
    return tensor;
  }
  tensor.dtype = *dtype->dtype;
  take_extent(rebuild, *storage, *dtype, tensor, problem);
  if (problem.empty()) tensor.shape = logical_shape(tensor.view.lengths, dtype->pairs);
  return tensor;
}

}  // namespace crossrank::codec
