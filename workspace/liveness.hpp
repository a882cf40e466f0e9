#pragma once
#include <cstdint>
#include <string>

#include "lib/platform/directory.hpp"

namespace crossrank::workspace {

/// Whether the writer of a file is still there.
enum class Writer : std::uint8_t { dead, alive, unknown };

/// Holds a published file for this process: a shared lock, which ends with the process however it ends. An empty one
/// where the file system has no locks; then nobody can tell, and nobody is told.
[[nodiscard]] platform::Fd hold_file(platform::Directory const& directory, std::string const& name) noexcept;

/// Asks by trying for the exclusive lock, which every live writer prevents. `unknown` where the file cannot be opened
/// for writing or the file system has no locks.
[[nodiscard]] Writer probe_writer(platform::Directory const& directory, std::string const& name) noexcept;

}  // namespace crossrank::workspace
