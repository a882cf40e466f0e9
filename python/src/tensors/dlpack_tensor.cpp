#include <string>
#include <utility>

#include <nanobind/stl/pair.h>

#include <crossrank/dlpack.hpp>

#include "tensors/dlpack_capsules.hpp"
#include "errors.hpp"
#include "tensors/streams.hpp"
#include "tensors/tensor_sources.hpp"
#include "waiting.hpp"

/// Views tensors of other libraries that hand them out by DLPack.
namespace crossrank::python {
namespace {

/// Returns the GPU that holds the object's memory; the CPU for memory elsewhere.
Device device_of(nb::handle object) {
  if (!nb::hasattr(object, "__dlpack_device__")) return Device::cpu();
  auto const [type, index] = nb::cast<std::pair<int, int>>(object.attr("__dlpack_device__")());
  return type == dlpack::device_cuda ? Device::cuda(index) : Device::cpu();
}

nb::object capsule_of(nb::handle object, nb::dict const& options) {
  nb::object const exporter = object.attr("__dlpack__");
  try {
    return exporter(nb::arg("max_version") = nb::make_tuple(1, 1), **options);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return exporter(**options);
}

/// Lets the object export its memory. A GPU's current stream then waits for the exporter's work.
nb::object export_of(nb::handle object, Device device) {
  nb::dict options;
  if (device.kind != Device::Kind::cpu) {
    StreamScope const streams;
    options["stream"] = dlpack::stream_number(current_stream(device));
  }
  try {
    return capsule_of(object, options);
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
  bool const writes = access == Access::write;
  auto const copy = writes ? DlpackCopy::never : DlpackCopy::if_needed;
  auto tensor = run_without_gil([&] { return from_dlpack(std::move(foreign), {.copy = copy}); });
  if (writes && !tensor.storage()->frozen_by().empty()) refuse_read_only();
  return tensor;
}

}  // namespace

std::optional<Tensor> tensor_from_dlpack(nb::handle object, Access access) {
  if (!nb::hasattr(object, "__dlpack__")) return std::nullopt;
  auto const device = device_of(object);
  follow_streams_of(device);
  auto const capsule = export_of(object, device);
  if (PyCapsule_IsValid(capsule.ptr(), versioned_capsule_name) != 0)
    return view(take<dlpack::OwnedVersioned>(capsule, versioned_capsule_name, used_versioned_capsule_name), access);
  return view(take<dlpack::OwnedManaged>(capsule, capsule_name, used_capsule_name), access);
}

}  // namespace crossrank::python
