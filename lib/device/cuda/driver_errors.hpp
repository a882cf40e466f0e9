#pragma once
#include <string>

#include "lib/device/cuda/driver_api.hpp"

namespace crossrank::cuda {

/// Returns whether every later call of the process fails as well.
[[nodiscard]] bool is_sticky(api::Result result) noexcept;

/// Returns the driver's name and text of a result: "CUDA_ERROR_OUT_OF_MEMORY: out of memory".
[[nodiscard]] std::string text_of(api::Functions const& functions, api::Result result);

/// Throws for a result that is not success: `UnavailableError` when there is no device or memory, else `BackendError`.
/// `function` is the driver's function, `operation` the library's.
[[noreturn]] void throw_driver_error(api::Functions const& functions, api::Result result, char const* function,
                                     char const* operation, std::string resource = {});

/// Logs an error where nothing can be thrown. Ignores errors after the driver has shut down.
void log_driver_error(api::Functions const& functions, api::Result result, char const* function) noexcept;

}  // namespace crossrank::cuda
