#pragma once
#include <chrono>
#include <filesystem>
#include <string>

#include <crossrank/state.hpp>

#include "workspace/nfs/published_file.hpp"
#include "workspace/nfs/read_retry_policy.hpp"

namespace crossrank::workspace {

/// Reads exactly the published file.
///
/// An NFS client may cache directory entries and attributes for a while, so a new file may stay invisible. Each attempt
/// therefore reopens the directory. Attempts continue, 10 ms to 1 s apart, until name, size and header checksum match.
/// A read that fails with ESTALE or EIO is tried three times.
///
/// Throws `IoError` when the retry policy gives up; the error lists what was expected, what was found, and how the
/// directory is mounted. Throws `IoError` with `ETIMEDOUT` when an attempt blocks for too long; the attempt is
/// abandoned. Throws `FormatError` at once when the file is the published one but does not verify.
[[nodiscard]] RankState read_published(std::filesystem::path const& directory, PublishedFile const& published,
                                       ReadRetryPolicy const& retry_policy);

/// Throws the `IoError` for a call on `path` that blocked for `waited`.
[[noreturn]] void fail_no_response(std::string operation, std::filesystem::path const& path,
                                   std::chrono::nanoseconds waited);

}  // namespace crossrank::workspace
