#pragma once
#include <cstdint>
#include <optional>

#include <nanobind/nanobind.h>

#include <crossrank/tensor.hpp>

namespace crossrank::python {

namespace nb = nanobind;

/// Says whether a call reads or writes a tensor.
enum class Access : std::uint8_t { read, write };

// Each function views the memory of one kind of object; nothing when the object is of another kind.
[[nodiscard]] std::optional<Tensor> tensor_from_torch(nb::handle object, Access access);
[[nodiscard]] std::optional<Tensor> tensor_from_buffer(nb::handle object, Access access);
[[nodiscard]] std::optional<Tensor> tensor_from_dlpack(nb::handle object, Access access);

/// Throws the error for a tensor that the call would write but that is not dense.
[[noreturn]] void refuse_strides();
/// Throws the error for a tensor that the call would write but that is read-only.
[[noreturn]] void refuse_read_only();
/// Throws the error for a dtype that crossrank lacks.
[[noreturn]] void refuse_dtype(std::string name);

}  // namespace crossrank::python
