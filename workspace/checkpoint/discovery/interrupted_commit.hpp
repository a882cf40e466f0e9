#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "workspace/checkpoint/source/directory_listing.hpp"

namespace crossrank::checkpoint {

/// Beginning of the names of the hidden folders in which jobs write.
inline constexpr std::string_view job_folder_prefix = ".crossrank-";
/// File in the folder of a job that has begun to give its files their names in the output.
inline constexpr char const* commit_record_name = ".committing";
/// Beginning of the names, in a job's folder, of files that go to subfolders of the output.
inline constexpr std::string_view nested_file_prefix = ".below.";

/// Returns the folder of a job that was killed while it committed its result to this directory, or is committing it
/// now: some files have not yet got their names, and others may be missing or old.
[[nodiscard]] std::optional<std::string> find_interrupted_commit(DirectoryListing const& listing);

/// Throws `FormatError` if there is such a folder.
void require_no_interrupted_commit(DirectoryListing const& listing);

}  // namespace crossrank::checkpoint
