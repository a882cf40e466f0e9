#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lib/platform/files/directory.hpp"

namespace crossrank::checkpoint {

/// Removes the folder of a dead job, which the caller has locked. If the job had begun to commit, all its files are
/// complete, and the old ones may have been moved aside already. Therefore the commit is completed first. Throws the
/// errors of `load_commit_record` and of `Commit`.
void complete_and_remove(platform::Directory const& out, platform::Directory const& work);

/// Removes the folders of dead jobs in an output.
///
/// Throws `UsageError` for the unfinished parts of a plan, unless `force` is set and no part is running.
///
/// With `force`, first completes the commit that a dead job had begun, so that its result is replaced as a whole or
/// stays whole. Throws `UsageError` for a running job and, without `force`, for a dead job that was committing.
void clean_up_dead_jobs(platform::Directory const& out, std::string const& own_folder, bool force);

/// Says what became of the folder of a job.
enum class Removal : std::uint8_t {
  gone,    ///< it is removed, or another process has removed it
  locked,  ///< the job is running
  kept,    ///< it is unknown whether the job is running: the file system has no locks
};

/// Locks the folder of a job and does the same as `complete_and_remove`, if the job is dead.
[[nodiscard]] Removal remove_dead_job(platform::Directory const& out, std::string const& name);

/// Completes the commits of jobs that were killed while they committed their results to a directory, so that it holds a
/// checkpoint again. Does nothing if no commit was interrupted, or if its job may still be running. Throws as
/// `complete_and_remove`.
void complete_interrupted_commits(std::filesystem::path const& path);

/// The result of `clean_jobs` for the folder of one job.
struct CleanedJob {
  std::string name{};
  std::uint64_t bytes = 0;
  bool removed = false;         ///< in a dry run: would be removed
  bool was_committing = false;  ///< the job's commit was completed first; in a dry run: would be completed
  std::string why{};            ///< reason why the folder stays; empty if it is removed
};

/// Options of `clean_jobs`.
struct CleanJobsOptions {
  bool dry_run = false;  ///< report what would be removed, and remove nothing
  bool force = false;    ///< also remove folders on file systems without locks, where a job may still be running
  bool all = false;      ///< also remove the parts of plans that are not finished
};

/// Removes the folders that killed jobs left in an output folder. Completes the commit of a job that was killed while
/// it committed. Keeps folders that only have a similar name. Of a plan that is not finished, removes only files that
/// killed parts were writing. Throws `IoError` if the output folder cannot be read or a commit cannot be completed, and
/// `FormatError` for a damaged commit record.
[[nodiscard]] std::vector<CleanedJob> clean_jobs(std::filesystem::path const& path, CleanJobsOptions options = {});

}  // namespace crossrank::checkpoint
