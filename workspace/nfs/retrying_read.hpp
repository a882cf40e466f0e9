#pragma once
#include <chrono>
#include <filesystem>
#include <string>

#include <crossrank/state.hpp>

#include "workspace/nfs/published_file.hpp"
#include "workspace/nfs/read_retry_policy.hpp"

namespace crossrank::workspace {

/// Reads exactly the file that was published.
///
/// On NFS a name may stay invisible, and attributes old, for as long as the client caches them. Each attempt therefore
/// opens the directory afresh, and attempts go on, 10 ms to 1 s apart, until name, size and header checksum are those
/// published. When the retry policy gives up: `IoError` with what was expected, what was seen, and how the directory is
/// mounted. Reads that the system fails (ESTALE, EIO) are tried three times. A file that is the published one and does
/// not verify is a `FormatError` at once. An attempt that stands still is left behind: `IoError` with `ETIMEDOUT`.
[[nodiscard]] RankState read_published(std::filesystem::path const& directory, PublishedFile const& published,
                                       ReadRetryPolicy const& retry_policy);

/// Throws that: a call on `path` stood still for `waited`.
[[noreturn]] void fail_no_response(std::string operation, std::filesystem::path const& path,
                                   std::chrono::nanoseconds waited);

}  // namespace crossrank::workspace
