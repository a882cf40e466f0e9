#pragma once
#include <string>

#include <crossrank/error.hpp>

namespace crossrank::platform {

/// Returns the error for memory that the system refused to this process, with the limits that apply to it.
[[nodiscard]] IoError memory_error(std::string const& operation);

}  // namespace crossrank::platform
