#pragma once
#include <chrono>
#include <filesystem>
#include <string>

#include <crossrank/state.hpp>

#include "workspace/announcement.hpp"
#include "workspace/read_patience.hpp"

namespace crossrank::workspace {

/// Reads exactly the file that was announced.
///
/// On NFS a name may stay invisible, and attributes old, for as long as the client caches them. Each attempt therefore
/// opens the directory afresh, and attempts go on, 10 ms to 1 s apart, until name, size and header checksum are those
/// announced. When the patience ends: `IoError` with what was expected, what was seen, and how the directory is
/// mounted. Reads that the system fails (ESTALE, EIO) are tried three times. A file that is the announced one and does
/// not verify is a `FormatError` at once. An attempt that stands still is left behind: `IoError` with `ETIMEDOUT`.
[[nodiscard]] RankState read_announced(std::filesystem::path const& directory, Announcement const& announced,
                                       ReadPatience const& patience);

/// Throws that: a call on `path` stood still for `waited`.
[[noreturn]] void fail_unanswered(std::string operation, std::filesystem::path const& path,
                                  std::chrono::nanoseconds waited);

}  // namespace crossrank::workspace
