#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include <nanobind/stl/string.h>

#include "tensors/borrowed_storage.hpp"
#include "errors.hpp"
#include "interpreter.hpp"
#include "tensors/streams.hpp"
#include "tensors/tensor_sources.hpp"
#include "tensors/torch_module.hpp"
#include "waiting.hpp"

/// Views torch tensors by their attributes: torch's own DLPack export takes ten times as long and refuses tensors with
/// gradients.
namespace crossrank::python {
namespace {

Dtype dtype_of_torch(Torch const& torch, nb::handle tensor) {
  nb::object const dtype = tensor.attr("dtype");
  auto const known = torch.dtypes.find(dtype.ptr());
  if (known == torch.dtypes.end()) refuse_dtype(nb::cast<std::string>(nb::str(dtype)));
  return known->second;
}

void require_plain(Torch const& torch, nb::handle tensor) {
  if (nb::hasattr(tensor, "to_local")) {
    refuse("tensor", "a DTensor has a part on each rank", "a plain tensor", "DTensor", "pass tensor.to_local()");
  }
  if (nb::cast<bool>(tensor.attr("is_nested")))
    refuse("tensor", "a nested tensor has no shape", "a plain tensor", "a nested tensor", "pass tensor.unbind()");
  nb::object const layout = tensor.attr("layout");
  if (layout.ptr() != torch.strided) {
    refuse("tensor", "the tensor is not dense", "torch.strided", nb::cast<std::string>(nb::str(layout)),
           "pass tensor.to_dense()");
  }
}

Device device_of_torch(nb::handle tensor) {
  if (nb::cast<bool>(tensor.attr("is_cpu"))) return Device::cpu();
  if (nb::cast<bool>(tensor.attr("is_cuda"))) return Device::cuda(nb::cast<int>(tensor.attr("get_device")()));
  nb::object const device = tensor.attr("device");
  refuse("tensor", "crossrank does not know this kind of device", "cpu or cuda", nb::cast<std::string>(nb::str(device)),
         "pass tensor.cpu()");
}

/// Returns a tensor whose memory holds its values, in row-major order.
nb::object make_plain(nb::handle tensor, Access access) {
  nb::object plain = nb::borrow(tensor);
  bool const lazy = nb::cast<bool>(plain.attr("is_conj")()) || nb::cast<bool>(plain.attr("is_neg")());
  bool const dense = nb::cast<bool>(plain.attr("is_contiguous")());
  if (dense && !lazy) return plain;
  if (access == Access::write) refuse_strides();
  plain = plain.attr("detach")();
  if (lazy) plain = plain.attr("resolve_conj")().attr("resolve_neg")();
  return plain.attr("contiguous")();
}

/// Returns the shape as safetensors has it: an element of torch's F4 is two values.
Shape shape_of(nb::handle tensor, Dtype dtype) {
  nb::object const lengths = tensor.attr("shape");
  std::int64_t each[Shape::max_rank];
  std::size_t count = 0;
  for (auto const length : lengths) {
    if (count == Shape::max_rank) refuse("tensor", "the tensor has more than 16 dimensions");
    each[count++] = nb::cast<std::int64_t>(length);
  }
  if (dtype == Dtype::f4) {
    if (count == 0) refuse("tensor", "a tensor of F4 has no dimension", {}, {}, "pass tensor.reshape(1)");
    auto& last = each[count - 1];
    if (last > std::numeric_limits<std::int64_t>::max() / 2) refuse("tensor", "a length does not fit into 64 bits");
    last *= 2;
  }
  return Shape(std::span<std::int64_t const>(each, count));
}

}  // namespace

std::optional<Tensor> tensor_from_torch(nb::handle object, Access access) {
  auto const* const torch = find_torch();
  if (torch == nullptr || PyType_IsSubtype(Py_TYPE(object.ptr()), torch->tensor) == 0) return std::nullopt;
  require_plain(*torch, object);
  auto const device = device_of_torch(object);
  auto const dtype = dtype_of_torch(*torch, object);
  auto plain = make_plain(object, access);
  auto const shape = shape_of(plain, dtype);
  auto* const data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(plain.attr("data_ptr")()));
  if (data == nullptr && shape.numel() > 0) {
    refuse("tensor", "the tensor has no memory of its own", "a plain tensor",
           nb::cast<std::string>(nb::str(plain.type())));
  }
  // The storage and not the tensor owns the memory: `module.half()` and `tensor.data = other` replace a tensor's
  // storage.
  auto owned = data == nullptr ? std::move(plain) : nb::object(plain.attr("untyped_storage")());
  auto const owner = std::make_shared<SharedObject>(std::move(owned));
  if (device.kind == Device::Kind::cpu) return view_of({.data = data, .shape = shape, .dtype = dtype}, [owner] {});
  follow_streams_of(device);
  return run_without_gil([&] { return Tensor::from_blob(data, shape, dtype, device, [owner](void*) {}); });
}

}  // namespace crossrank::python
