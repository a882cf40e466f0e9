#pragma once
#include <string>

#include <crossrank/error.hpp>

namespace crossrank::platform {

/// Name and meaning of an errno value: "ENOSPC (No space left on device)".
[[nodiscard]] std::string errno_text(int error);

/// Throws an `IoError` that says which call failed on what, and with which errno.
[[noreturn]] void throw_io(std::string operation, std::string resource, int error, std::string hint = {});

/// The same with everything else that is known; `system` and `system_errno` are filled from `error`.
[[noreturn]] void throw_io(ErrorInfo info, int error);

}  // namespace crossrank::platform
