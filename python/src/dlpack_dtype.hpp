#pragma once
#include <optional>

#include <crossrank/dtype.hpp>

#include "dlpack.hpp"

namespace crossrank::python {

/// Returns the dtype with this DLPack type, or nothing.
[[nodiscard]] std::optional<Dtype> dtype_of_dlpack(dlpack::DataType type) noexcept;
/// Returns the DLPack type of a dtype.
[[nodiscard]] dlpack::DataType dlpack_type_of(Dtype dtype);

}  // namespace crossrank::python
