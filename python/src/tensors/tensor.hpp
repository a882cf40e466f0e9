#pragma once
#include <string_view>

#include <nanobind/nanobind.h>

#include <crossrank/device.hpp>
#include <crossrank/tensor/dtype.hpp>
#include <crossrank/state.hpp>
#include <crossrank/tensor.hpp>
#include <crossrank/tensor_dict.hpp>

namespace crossrank::python {

namespace nb = nanobind;

/// Returns a view of the memory of a crossrank, torch, numpy, DLPack or buffer object. None is an undefined tensor.
///
/// A tensor on a GPU is viewed there. A non-contiguous tensor is copied. The object lives as long as the view.
/// `UsageError` for other devices and dtypes that crossrank lacks.
[[nodiscard]] Tensor tensor_from(nb::handle object);

/// Does the same for a tensor that the call writes. `UsageError` also when it is not contiguous or read-only.
[[nodiscard]] Tensor writable_tensor_from(nb::handle object);

/// Returns the tensors of a dict. Two names of the same memory share one view.
[[nodiscard]] StateDict state_dict_from(nb::handle dict);
/// Returns a dict of crossrank tensors.
[[nodiscard]] nb::dict state_dict_to_python(StateDict const& weights);

/// Returns the tree of a dict of tensors, JSON values, dicts and lists.
[[nodiscard]] TensorDict tensor_dict_from(nb::handle dict);
/// Returns the dict of a tree.
[[nodiscard]] nb::dict tensor_dict_to_python(TensorDict const& dict);

/// Returns the Python object of a tensor; None for an undefined one. Later calls follow the streams of its GPU.
[[nodiscard]] nb::object to_python(Tensor const& tensor);

/// Returns the dtype with this safetensors name. `UsageError` for another name.
[[nodiscard]] Dtype dtype_named(std::string_view name);

/// Returns a name, or `str(object)` of an object that has one, such as a `torch.device`.
[[nodiscard]] nb::str name_from(nb::handle object);

/// Returns the device with this name, "cpu", "cuda" or "cuda:1", also that of a `torch.device`. "cuda" is the GPU of
/// this process: `UnavailableError` without one. `UsageError` for another name.
[[nodiscard]] Device device_from(nb::handle name);

/// Returns such a device. Later calls follow its streams.
[[nodiscard]] Device followed_device(nb::handle name);

/// Returns whether a text is the name of a device, and not that of a dtype.
[[nodiscard]] bool names_device(std::string_view text) noexcept;

/// Returns whether the bytes are on a GPU.
[[nodiscard]] inline bool is_on_gpu(Tensor const& tensor) { return tensor.device().kind != Device::Kind::cpu; }

/// Returns the shape of a sequence of lengths.
[[nodiscard]] Shape shape_from(nb::handle lengths);

}  // namespace crossrank::python
