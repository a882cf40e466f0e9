#include <string>

#include <crossrank/dlpack.hpp>

#include "tensors/dlpack_capsules.hpp"
#include "errors.hpp"
#include "tensors/tensor_sources.hpp"

/// Views tensors of other libraries that hand them out by DLPack.
namespace crossrank::python {
namespace {

nb::object capsule_of(nb::handle object) {
  try {
    return object.attr("__dlpack__")(nb::arg("max_version") = nb::make_tuple(1, 1));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return object.attr("__dlpack__")();
}

nb::object export_of(nb::handle object) {
  try {
    return capsule_of(object);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_BufferError)) throw;
    refuse("tensor", "the elements of this object are not numbers of a known dtype: " + raised_text(error), {},
           type_text(object));
  }
}

/// Takes the tensor out of the capsule, which is then used up.
template <class Owned>
Owned take(nb::object const& capsule, char const* name, char const* used_name) {
  auto* const managed = static_cast<typename Owned::pointer>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (managed == nullptr) throw nb::python_error();
  PyCapsule_SetName(capsule.ptr(), used_name);
  return Owned(managed);
}

template <class Owned>
Tensor view(Owned foreign, Access access) {
  auto const device = foreign->tensor.device.type;
  if (device != dlpack::device_cpu && device != dlpack::device_cuda_host)
    refuse("tensor", "the tensor is not on the CPU", "DLPack device type 1 or 3", std::to_string(device));
  bool const writes = access == Access::write;
  auto tensor = from_dlpack(std::move(foreign), {.copy = writes ? DlpackCopy::never : DlpackCopy::if_needed});
  if (writes && !tensor.storage()->frozen_by().empty()) refuse_read_only();
  return tensor;
}

}  // namespace

std::optional<Tensor> tensor_from_dlpack(nb::handle object, Access access) {
  if (!nb::hasattr(object, "__dlpack__")) return std::nullopt;
  auto const capsule = export_of(object);
  if (PyCapsule_IsValid(capsule.ptr(), versioned_capsule_name) != 0)
    return view(take<dlpack::OwnedVersioned>(capsule, versioned_capsule_name, used_versioned_capsule_name), access);
  return view(take<dlpack::OwnedManaged>(capsule, capsule_name, used_capsule_name), access);
}

}  // namespace crossrank::python
