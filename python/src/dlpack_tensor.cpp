#include <memory>
#include <string>

#include "borrowed_storage.hpp"
#include "dlpack.hpp"
#include "dlpack_dtype.hpp"
#include "errors.hpp"
#include "tensor_sources.hpp"

/// Views tensors of other libraries that hand them out by DLPack.
namespace crossrank::python {
namespace {

bool is_dense(dlpack::Tensor const& tensor) {
  if (tensor.strides == nullptr) return true;
  std::int64_t expected = 1;
  for (int i = tensor.ndim; i-- > 0;) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

/// Copies a strided tensor of whole bytes into dense memory.
Tensor dense_copy(dlpack::Tensor const& tensor, std::byte const* data, Shape const& shape, Dtype dtype) {
  auto copy = Tensor::empty(shape, dtype);
  auto const bytes = bits_of(dtype) / 8;
  if (bytes == 0) refuse("tensor", "the tensor is not contiguous", {}, {}, "make it contiguous first");
  auto* to = copy.mutable_bytes().data();
  std::int64_t at[Shape::max_rank] = {};
  for (std::int64_t left = shape.numel(); left > 0; --left) {
    std::int64_t offset = 0;
    for (int i = 0; i < tensor.ndim; ++i) offset += at[i] * tensor.strides[i];
    std::memcpy(to, data + offset * static_cast<std::int64_t>(bytes), bytes);
    to += bytes;
    for (int i = tensor.ndim; i-- > 0 && ++at[i] == tensor.shape[i];) at[i] = 0;
  }
  return copy;
}

Tensor view_dlpack(dlpack::Tensor const& tensor, bool read_only, Access access, std::function<void()> release) {
  auto const owner = std::shared_ptr<void>(nullptr, [release](void*) { release(); });
  if (tensor.device.type != dlpack::device_cpu) {
    refuse("tensor", "the tensor is not on the CPU", "DLPack device type 1", std::to_string(tensor.device.type));
  }
  auto const dtype = dtype_of_dlpack(tensor.dtype);
  if (!dtype) {
    refuse_dtype("DLPack code " + std::to_string(tensor.dtype.code) + " of " + std::to_string(tensor.dtype.bits) +
                 " bits");
  }
  Shape const shape(std::span<std::int64_t const>(tensor.shape, static_cast<std::size_t>(tensor.ndim)));
  auto* const data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  if (!is_dense(tensor)) {
    if (access == Access::write) refuse_strides();
    return dense_copy(tensor, data, shape, *dtype);
  }
  if (read_only && access == Access::write) refuse_read_only();
  return view_of({.data = data, .shape = shape, .dtype = *dtype, .read_only = read_only}, [owner] {});
}

nb::object export_of(nb::handle object) {
  try {
    return object.attr("__dlpack__")(nb::arg("max_version") = nb::make_tuple(1, 1));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return object.attr("__dlpack__")();
}

}  // namespace

std::optional<Tensor> tensor_from_dlpack(nb::handle object, Access access) {
  if (!nb::hasattr(object, "__dlpack__")) return std::nullopt;
  auto const capsule = export_of(object);
  if (PyCapsule_IsValid(capsule.ptr(), dlpack::versioned_capsule) != 0) {
    auto* const managed =
        static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::versioned_capsule));
    if (managed->version.major != 1) refuse("tensor", "the tensor was exported by another major version of DLPack");
    PyCapsule_SetName(capsule.ptr(), dlpack::used_versioned_capsule);
    return view_dlpack(managed->tensor, (managed->flags & dlpack::flag_read_only) != 0, access, [managed] {
      if (managed->deleter != nullptr) managed->deleter(managed);
    });
  }
  auto* const managed = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::capsule));
  if (managed == nullptr) throw nb::python_error();
  PyCapsule_SetName(capsule.ptr(), dlpack::used_capsule);
  return view_dlpack(managed->tensor, false, access, [managed] {
    if (managed->deleter != nullptr) managed->deleter(managed);
  });
}

}  // namespace crossrank::python
