#include "workspace/checkpoint/write/dead_jobs.hpp"

#include <utility>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/write/job_files.hpp"
#include "workspace/checkpoint/write/commit.hpp"

namespace crossrank::checkpoint {

void clean_up_dead_jobs(platform::Directory const& out, std::string const& own_folder, bool force) {
  for (auto const& name : out.names(write_operation)) {
    if (!is_job_folder(name) || name == own_folder || entry_at(out, name) != Entry::folder) continue;
    auto const work = platform::Directory::open(out.path_of(name), write_operation);
    if (!belongs_to_job(work)) continue;
    auto const lock = take_lock(work);
    if (!lock) {
      throw UsageError({.operation = write_operation,
                        .message = "another job is writing there now",
                        .got = name,
                        .resource = out.path().string(),
                        .hint = "wait for it to end, or give another directory"});
    }
    auto const plan = load_commit_record(work);
    if (plan && !force) {
      throw UsageError({.operation = write_operation,
                        .message = "a job was killed there while it gave its files their names",
                        .got = name,
                        .resource = out.path().string(),
                        .hint = "start that job again with `resume`; or this one with `force`, which brings that "
                                "one to its end and then replaces its checkpoint"});
    }
    if (plan) Commit(out, work).run(*plan);
    remove_job(out, work);
  }
}

std::vector<CleanedJob> clean_jobs(std::filesystem::path const& path, CleanJobsOptions options) {
  std::vector<CleanedJob> jobs;
  auto const out = platform::Directory::open(path, write_operation);
  for (auto const& name : out.names(write_operation)) {
    if (!is_job_folder(name) || entry_at(out, name) != Entry::folder) continue;
    auto const work = platform::Directory::open(out.path_of(name), write_operation);
    CleanedJob job{.name = name, .bytes = bytes_in(work)};
    if (!belongs_to_job(work)) {
      job.why = "it is not the folder of a job: it has no lock file";
    } else if (auto const lock = take_lock(work); !lock) {
      job.why = "its job is running";
    } else if (!options.force && !lock_is_effective(work)) {
      job.why = "nobody can tell whether its job is running: no lock could be asked for";
    } else if (has_commit_record(work)) {
      job.why = "it holds what its job was committing: start that job again with `resume`, or another with `force`";
    } else {
      job.removed = true;
      if (!options.dry_run) remove_job(out, work);
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace crossrank::checkpoint
