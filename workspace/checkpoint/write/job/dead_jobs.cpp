#include "workspace/checkpoint/write/job/dead_jobs.hpp"

#include <system_error>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/discovery/interrupted_commit.hpp"
#include "workspace/checkpoint/write/job/job_files.hpp"
#include "workspace/checkpoint/write/job/commit.hpp"
#include "workspace/checkpoint/write/job/part_runs.hpp"

namespace crossrank::checkpoint {

namespace {

void clean_up_dead_job(platform::Directory const& out, std::string const& name, bool force) {
  auto const work = platform::Directory::open(out.path_of(name), write_operation);
  if (!belongs_to_job(work)) return;
  auto const lock = take_lock(work);
  if (!lock) {
    throw UsageError({.operation = write_operation,
                      .message = "another job is writing to the output",
                      .got = name,
                      .resource = out.path().string(),
                      .hint = "wait until it ends, or choose another output directory"});
  }
  bool const unfinished = has_unfinished_parts(work);
  if (unfinished && (!force || any_part_runs(work))) {
    throw UsageError({.operation = write_operation,
                      .message = "the output has parts of a plan that is not finished",
                      .got = name,
                      .resource = out.path().string(),
                      .hint = force ? "wait until its parts end, or choose another output directory"
                                    : "finish that plan, or use `force` to drop its parts, or choose another output "
                                      "directory"});
  }
  if (!force && has_commit_record(work)) {
    throw UsageError({.operation = write_operation,
                      .message = "a job was killed while it committed its result to this output",
                      .got = name,
                      .resource = out.path().string(),
                      .hint =
                          "complete its commit with `crossrank clean`, or use `force`, which completes the commit and "
                          "then replaces that checkpoint"});
  }
  complete_and_remove(out, work);
}

}  // namespace

void complete_and_remove(platform::Directory const& out, platform::Directory const& work) {
  if (auto const begun = load_commit_record(work)) Commit(out, work).run(*begun);
  remove_job(out, work);
}

void clean_up_dead_jobs(platform::Directory const& out, std::string const& own_folder, bool force) {
  for (auto const& name : out.names(write_operation)) {
    if (!is_job_folder(name) || name == own_folder || entry_at(out, name) != Entry::folder) continue;
    try {
      clean_up_dead_job(out, name, force);
    } catch (IoError const&) {
      if (entry_at(out, name) == Entry::folder) throw;  // else its own job or another one has removed it
    }
  }
}

Removal remove_dead_job(platform::Directory const& out, std::string const& name) {
  if (entry_at(out, name) != Entry::folder) return Removal::gone;
  try {
    auto const work = platform::Directory::open(out.path_of(name), write_operation);
    auto const lock = take_lock(work);
    if (!lock) return Removal::locked;
    if (!lock_is_effective(work)) return Removal::kept;
    complete_and_remove(out, work);
  } catch (IoError const&) {
    if (entry_at(out, name) == Entry::folder) throw;  // else another process has removed it
  }
  return Removal::gone;
}

void complete_interrupted_commits(std::filesystem::path const& path) {
  if (!has_directory(path)) return;
  while (auto const name = find_interrupted_commit(list_directory(path))) {
    if (remove_dead_job(platform::Directory::open(path, write_operation), *name) != Removal::gone) return;
  }
}

std::vector<CleanedJob> clean_jobs(std::filesystem::path const& path, CleanJobsOptions options) {
  std::vector<CleanedJob> jobs;
  auto const out = platform::Directory::open(path, write_operation);
  for (auto const& name : out.names(write_operation)) {
    if (!is_job_folder(name) || entry_at(out, name) != Entry::folder) continue;
    auto const work = platform::Directory::open(out.path_of(name), write_operation);
    CleanedJob job{.name = name, .bytes = bytes_in(work).on_disk};
    if (!belongs_to_job(work)) {
      job.why = "not the folder of a job: it has no lock file";
    } else if (options.dry_run && work.names(write_operation).empty()) {
      job.removed = true;  // taking the lock would write its file
    } else if (auto const lock = take_lock(work); !lock) {
      job.why = "the job is running";
    } else if (!options.force && !lock_is_effective(work)) {
      job.why = "it is unknown whether the job is running: the file system has no locks";
    } else if (any_part_runs(work)) {
      job.why = "a part is running";
    } else if (has_unfinished_parts(work) && !options.all) {
      job.why = "parts of a plan that is not finished: finish it, or use `all` to remove them";
      if (!options.dry_run) remove_dead_runs(work);
    } else {
      job.removed = true;
      job.was_committing = has_commit_record(work);
      if (!options.dry_run) complete_and_remove(out, work);
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace crossrank::checkpoint
