#pragma once
#include <string>

#include <crossrank/error.hpp>

namespace crossrank::platform {

/// Returns name and meaning of an errno value: "ENOSPC (No space left on device)".
[[nodiscard]] std::string errno_text(int error);

/// Returns what to do if `error` says that the file system of an open directory is full, else an empty text. The file
/// system may lack inodes rather than bytes.
[[nodiscard]] std::string hint_if_full(int directory, int error);

/// Returns whether an error is about what this process may use, such as descriptors and memory, and not about a file.
[[nodiscard]] bool is_own_limit(Error const& error) noexcept;

/// Throws an `IoError` with the operation that failed, its resource and errno.
[[noreturn]] void throw_io(std::string operation, std::string resource, int error, std::string hint = {});

/// Throws an `IoError` with all fields of `info`. Fills `system` and `system_errno` from `error`.
[[noreturn]] void throw_io(ErrorInfo info, int error);

}  // namespace crossrank::platform
