#include "workspace/checkpoint/discovery/interrupted_commit.hpp"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>

#include "workspace/checkpoint/source/torch/dcp_source.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Returns whether a file in a job's folder is one of the result. The job's own records have names with a dot.
bool is_of_result(std::string const& name) {
  return !name.starts_with('.') || name == dcp_metadata_name || name.starts_with(nested_file_prefix);
}

/// Returns whether a job's folder has both a commit record and files of the result. Other users may not read it; then
/// nothing is known.
bool has_uncommitted_files(fs::path const& folder) {
  std::error_code error;
  if (!fs::exists(folder / commit_record_name, error)) return false;
  fs::directory_iterator at(folder, error);
  for (fs::directory_iterator const end; !error && at != end; at.increment(error)) {
    if (is_of_result(at->path().filename().string())) return true;
  }
  return false;
}

}  // namespace

std::optional<std::string> find_interrupted_commit(DirectoryListing const& listing) {
  auto const found = std::ranges::find_if(listing.directories, [&](auto const& name) {
    return name.starts_with(job_folder_prefix) && has_uncommitted_files(listing.path / name);
  });
  return found == listing.directories.end() ? std::nullopt : std::optional(*found);
}

void require_no_interrupted_commit(DirectoryListing const& listing) {
  auto const folder = find_interrupted_commit(listing);
  if (!folder) return;
  refuse_listing(listing, "a job was killed while it committed its result to this directory, or is committing it now",
                 *folder, "complete its commit with `crossrank clean`; files of the checkpoint are in that folder");
}

}  // namespace crossrank::checkpoint
