#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lib/platform/directory.hpp"

namespace crossrank::checkpoint {

/// Removes the folders that other jobs left in an output when they died. What one of them had begun to commit is
/// brought to its end first, and only by `force`: who comes next replaces it, or fails and leaves it whole.
/// `UsageError` for a job that runs there, and without `force` for one that was committing.
void clean_up_dead_jobs(platform::Directory const& out, std::string const& own_folder, bool force);

/// What cleaning did with the folder of a job.
struct CleanedJob {
  std::string name{};
  std::uint64_t bytes = 0;
  bool removed = false;  ///< or would be, in a dry run
  std::string why{};     ///< why it stays; empty for what goes
};

struct CleanJobsOptions {
  bool dry_run = false;  ///< say what would go, remove nothing
  bool force = false;    ///< also where the file system has no locks that tell whether a job is running
};

/// Removes the folders that killed jobs left in an output folder. A folder that only has such a name stays. `IoError`
/// when the output folder cannot be read.
[[nodiscard]] std::vector<CleanedJob> clean_jobs(std::filesystem::path const& path, CleanJobsOptions options = {});

}  // namespace crossrank::checkpoint
