#include "tensors/dlpack_export.hpp"

#include <cstdint>
#include <optional>

#include <crossrank/dlpack.hpp>
#include <crossrank/tensor/clone_on_write.hpp>

#include "tensors/dlpack_capsules.hpp"
#include "tensors/tensor.hpp"
#include "waiting.hpp"

namespace crossrank::python {
namespace {

template <class Managed>
void drop_unused(PyObject* capsule, char const* name) {
  if (PyCapsule_IsValid(capsule, name) != 0)
    dlpack::Deleter()(static_cast<Managed*>(PyCapsule_GetPointer(capsule, name)));
}

void drop_unused_capsule(PyObject* capsule) {
  drop_unused<dlpack::ManagedVersioned>(capsule, versioned_capsule_name);
  drop_unused<dlpack::Managed>(capsule, capsule_name);
}

template <class Owned>
nb::object capsule_around(Owned exported, char const* name) {
  auto capsule = nb::steal(PyCapsule_New(exported.get(), name, &drop_unused_capsule));
  if (!capsule.is_valid()) throw nb::python_error();
  static_cast<void>(exported.release());  // the deleter of the capsule frees it
  return capsule;
}

/// Returns the consumer's stream. A consumer of a GPU tensor that passes none uses the legacy default stream.
std::optional<std::intptr_t> stream_of(Tensor const& tensor, nb::handle stream) {
  constexpr std::intptr_t legacy_default = 1;
  if (!stream.is_none()) return nb::cast<std::intptr_t>(stream);
  return is_on_gpu(tensor) ? std::optional(legacy_default) : std::nullopt;
}

/// The arguments that a consumer passes to `__dlpack__`.
struct Wish {
  nb::handle stream;
  nb::handle max_version;
  nb::handle device;
  nb::handle copy;
};

/// Returns whether the consumer asks for a copy of a GPU tensor on the CPU. Throws for another device.
bool wants_host_copy(Tensor const& tensor, Wish const& wish) {
  if (wish.device.is_none()) return false;
  auto const own = dlpack::device_of(tensor);
  auto const type = nb::cast<std::int32_t>(wish.device[0]);
  if (type == own.type && nb::cast<std::int32_t>(wish.device[1]) == own.index) return false;
  bool const to_host = type == dlpack::device_cpu;
  if (to_host && !is_on_gpu(tensor)) return false;
  bool const forbids_copy = !wish.copy.is_none() && !nb::cast<bool>(wish.copy);
  if (to_host && !forbids_copy) return true;
  throw nb::buffer_error("crossrank exports a tensor on its own device, or as a copy on the CPU");
}

/// Returns the tensor to export. A read-only one on the CPU becomes a private copy unless the consumer forbids that:
/// torch ignores the read-only flag, and its write to the pages of a file would end the process.
Tensor exported_tensor(Tensor const& given, Wish const& wish, bool to_host) {
  if (to_host) return run_copy([&] { return given.to(Device::cpu()); });
  if (!wish.copy.is_none() || is_on_gpu(given) || !is_read_only(given)) return given;
  return run_without_gil([&] { return clone_on_write(given); });
}

/// Exports a capsule of the newest kind that the consumer takes: without a version, it is of before DLPack 1.0.
nb::object capsule_of(Tensor const& given, Wish const& wish) {
  bool const to_host = wants_host_copy(given, wish);
  auto const tensor = exported_tensor(given, wish, to_host);
  bool const copied = !to_host && !wish.copy.is_none() && nb::cast<bool>(wish.copy);
  DlpackExport const options{.copy = copied ? DlpackCopy::always : DlpackCopy::if_needed,
                             .stream = to_host ? std::nullopt : stream_of(tensor, wish.stream)};
  if (!wish.max_version.is_none() && nb::cast<int>(wish.max_version[0]) >= 1)
    return capsule_around(run_without_gil([&] { return to_dlpack(tensor, options); }), versioned_capsule_name);
  if (is_read_only(tensor) && !copied)
    throw nb::buffer_error("the tensor is read-only, which a capsule of before DLPack 1.0 cannot say: allow a copy");
  return capsule_around(run_without_gil([&] { return to_dlpack_unversioned(tensor, options); }), capsule_name);
}

}  // namespace

bool is_read_only(Tensor const& tensor) { return tensor.defined() && !tensor.storage()->frozen_by().empty(); }

void define_dlpack_export(nb::class_<Tensor>& tensor) {
  tensor
      .def(
          "__dlpack__",
          [](Tensor const& t, nb::handle stream, nb::handle max_version, nb::handle device, nb::handle copy) {
            return capsule_of(t, {.stream = stream, .max_version = max_version, .device = device, .copy = copy});
          },
          nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
          nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none(),
          "Exports the tensor by DLPack: as a versioned capsule if `max_version` allows it, else as one of before "
          "DLPack 1.0.\n\n"
          "A read-only tensor on the CPU is exported as a writable copy, as `torch()` gives it: no write reaches the "
          "file or\n"
          "another rank. With `copy=False` the capsule has the read-only flag, which torch ignores; without a version "
          "that\n"
          "is a `BufferError`.\n\n"
          "`stream` is the consumer's stream of a tensor on a GPU, which then waits for the current one; None is the "
          "default\n"
          "stream. `dl_device=(1, 0)` asks for a copy on the CPU.\n")
      .def(
          "__dlpack_device__",
          [](Tensor const& t) {
            auto const device = dlpack::device_of(t);
            return nb::make_tuple(device.type, device.index);
          },
          "Returns DLPack's kind and number of the device.");
}

}  // namespace crossrank::python
