#include "workspace/checkpoint/write/job/job_folder.hpp"

#include <cerrno>
#include <chrono>
#include <optional>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <crossrank/error.hpp>

#include "lib/platform/backoff.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/files/fd.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/files/path_links.hpp"
#include "lib/platform/retry.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/write/job/dead_jobs.hpp"
#include "workspace/checkpoint/write/job/job_files.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
// The umask applies. A directory that all users may write to would be refused.
constexpr mode_t folder_mode = S_IRWXU | S_IRWXG | S_IROTH | S_IXOTH;

/// Creates a folder unless it exists. Returns whether it was created.
bool make_folder(fs::path const& path) {
  auto const made =
      platform::retry_interrupted([&] { return platform::system().mkdirat(AT_FDCWD, path.c_str(), folder_mode); });
  if (made == 0) return true;
  if (errno != EEXIST) platform::throw_io(std::string(write_operation) + ": mkdir", path.string(), errno);
  return false;
}

/// Throws `UsageError` unless `path` is a folder or can be created as one.
void require_folder(fs::path const& path) {
  std::error_code error;
  if (path.empty()) {
    throw UsageError({.operation = write_operation,
                      .message = "the output path is empty",
                      .hint = "give the name of a directory; it is created if needed"});
  }
  if (fs::is_symlink(path, error) && !fs::exists(path, error)) {
    throw UsageError({.operation = write_operation,
                      .message = "the output is a dangling link",
                      .got = fs::read_symlink(path, error).string(),
                      .resource = path.string(),
                      .hint = "create the directory that it points to, or remove the link"});
  }
  if (!fs::exists(path, error) || fs::is_directory(path, error)) return;
  throw UsageError({.operation = write_operation,
                    .message = "the output must be a directory, but this is a file",
                    .resource = path.string(),
                    .hint = "give the name of a directory; it is created if needed"});
}

/// Removes folders, innermost first, up to the first that is not empty.
void remove_empty(std::vector<fs::path> const& folders) noexcept {
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder) {
    if (platform::system().unlinkat(AT_FDCWD, folder->c_str(), AT_REMOVEDIR) != 0) return;
  }
}

/// Creates a folder and its missing parents, durably, and appends those that it created to `made`.
void make_folders(fs::path const& path, std::vector<fs::path>& made) {
  if (!path.has_filename() && path.has_relative_path()) return make_folders(path.parent_path(), made);  // "out/"
  std::error_code error;
  auto const parent = path.parent_path();
  if (!parent.empty() && !fs::exists(parent, error)) make_folders(parent, made);
  if (!make_folder(path)) return;
  made.push_back(path);
  // A parent that this process may not read cannot be synced; its file system decides when the entry is durable.
  platform::Fd const above(platform::retry_interrupted([&] {
    return platform::system().openat(AT_FDCWD, parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY, 0);
  }));
  if (above) platform::sync_directory(above.get(), parent, write_operation);
}

/// Holds other jobs of this output back until the descriptor is closed, so that exactly one begins of several that
/// start at once. Waits some seconds for another one to start. Where directories have no locks (NFS) it holds nobody
/// back, and jobs that start at once may all be refused.
platform::Fd hold_other_starts(platform::Directory const& out) {
  constexpr int attempts = 500;
  auto& os = platform::system();
  platform::Fd held(
      platform::retry_interrupted([&] { return os.openat(out.fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); }));
  platform::Backoff backoff({.longest_sleep = std::chrono::milliseconds(20)});
  for (int attempt = 0; held && attempt < attempts; ++attempt) {
    if (os.flock(held.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) break;
    backoff.pause();
  }
  return held;
}

/// The output of a job that starts, and the folder in it where the job works.
struct JobStart {
  std::vector<fs::path> new_folders{};  ///< the output and its parents, if this job made them, outermost first
  platform::Directory out{};
  platform::Fd others_wait{};  ///< of `hold_other_starts`
  platform::Directory work{};
  std::optional<platform::Fd> lock{};  ///< nothing if a running process holds it
  bool is_fresh = false;               ///< this job made `work`
};

/// Makes the output, and makes, opens and locks the folder of the job in it. Waits a little and tries again when
/// another job removes one of them: the output because it had made it and fails, or a folder without a lock because it
/// takes it for that of a dead job.
void start_job(JobRequest const& request, JobStart& start) {
  constexpr int attempts = 24;
  platform::Backoff backoff({.longest_sleep = std::chrono::milliseconds(20)});
  auto const path = request.out / folder_name(request.id);
  bool was_made_here = false;
  for (int attempt = 1;; ++attempt) {
    try {
      make_folders(request.out, start.new_folders);
      start.out = platform::Directory::open(request.out, write_operation);
      start.others_wait = hold_other_starts(start.out);
      start.is_fresh = make_folder(path);
      was_made_here = was_made_here || start.is_fresh;
      CROSSRANK_CRASH_POINT("checkpoint.job.made");
      start.work = platform::Directory::open(path, write_operation);
      start.lock = take_lock(start.work);
      if (start.lock || !was_made_here || attempt == attempts) return;
    } catch (IoError const& error) {
      if (error.info().system_errno != ENOENT || attempt == attempts) throw;
    }
    start.others_wait = {};
    backoff.pause();
  }
}

void require_free(platform::Directory const& out, JobRequest const& request) {
  auto const taken = files_to_replace(out, request.names);
  if (request.force || taken.empty()) return;
  throw UsageError({.operation = write_operation,
                    .message = "the output already has a checkpoint",
                    .got = std::to_string(taken.size()) + " files, " + taken.front() + " among them",
                    .resource = out.path().string(),
                    .hint = "choose another output directory, or use `force` to replace it",
                    .details = taken});
}

/// Throws unless this process may create files in the folder.
void require_writable(fs::path const& folder) {
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return;
  platform::throw_io(std::string(write_operation) + ": create files", folder.string(), errno);
}

/// Throws unless the file system of the folder `path` has space for `bytes`. `have` of them are already written.
void require_space(int folder, fs::path const& path, std::uint64_t have, std::uint64_t bytes) {
  struct statvfs space {};
  if (platform::system().fstatvfs(folder, &space) != 0)
    platform::throw_io(std::string(write_operation) + ": statvfs", path.string(), errno);
  if (space.f_blocks == 0) return;  // the file system does not tell its size
  auto const free = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize + have;
  if (free >= bytes) return;
  platform::throw_io(ErrorInfo{.operation = write_operation,
                               .message = "the file system has too little free space; nothing was written",
                               .expected = std::to_string(bytes) + " bytes",
                               .got = std::to_string(free) + " free",
                               .resource = path.string(),
                               .hint = "free some space, or choose a directory on a larger file system"},
                     ENOSPC);
}

}  // namespace

JobFolder::JobFolder(JobRequest request, platform::Directory out, platform::Directory work)
    : request_(std::move(request)), out_(std::move(out)), work_(std::move(work)) {}

JobFolder JobFolder::make(JobRequest const& request) {
  require_folder(request.out);
  platform::check_links_above(request.out, write_operation);
  JobStart start;
  try {
    start_job(request, start);
  } catch (...) {
    remove_empty(start.new_folders);
    throw;
  }
  JobFolder job(request, std::move(start.out), std::move(start.work));
  job.new_folders_ = std::move(start.new_folders);
  if (!start.lock) {
    throw UsageError({.operation = write_operation,
                      .message = "the same job is already running in this output",
                      .resource = request.out.string(),
                      .hint = "wait until it ends, or choose another output directory"});
  }
  job.lock_ = std::move(*start.lock);
  // Loaded before anything can fail, because an interrupted commit must survive every failure.
  if (!start.is_fresh) job.interrupted_commit_ = load_commit_record(job.work_);
  try {
    clean_up_dead_jobs(job.out_, folder_name(request.id), request.force);
    job.finish_interrupted_commit();
    if (!job.interrupted_commit_) {
      if (!start.is_fresh && !request.resume) clear_job(job.work_);
      require_free(job.out_, request);
      require_space(job.out_.fd(), job.out_.path(), bytes_in(job.work_).written, request.bytes);
    }
  } catch (...) {
    // Files that can be resumed stay.
    if (start.is_fresh || !request.resume) job.remove();
    throw;
  }
  CROSSRANK_CRASH_POINT("checkpoint.job.locked");
  return job;
}

void JobFolder::check(JobRequest const& request) {
  std::error_code error;
  require_folder(request.out);
  platform::check_links_above(request.out, write_operation);
  auto folder = fs::absolute(request.out);
  if (fs::exists(folder, error)) {
    auto const out = platform::Directory::open(folder, write_operation);
    require_free(out, request);
    require_writable(folder);
    auto const work = folder_name(request.id);
    bool const resumes = request.resume && entry_at(out, work) == Entry::folder;
    auto const have = resumes ? bytes_in(platform::Directory::open(out.path_of(work), write_operation)).written : 0;
    return require_space(out.fd(), folder, have, request.bytes);
  }
  // A missing output will be created below its nearest existing parent, which may be a folder of other users.
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  require_folder(folder);
  platform::Fd const parent(platform::retry_interrupted(
      [&] { return platform::system().openat(AT_FDCWD, folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC, 0); }));
  if (!parent) platform::throw_io(std::string(write_operation) + ": open directory", folder.string(), errno);
  require_writable(folder);
  require_space(parent.get(), folder, 0, request.bytes);
}

JobFolder JobFolder::open(JobRequest const& request) {
  auto const folder = request.out / folder_name(request.id);
  return JobFolder(request, platform::Directory::open(request.out, write_operation),
                   platform::Directory::open(folder, write_operation));
}

void JobFolder::mark_finished(std::string const& name, Json const& facts) const {
  save_json(work_, finished_marker_name(name), facts);
  CROSSRANK_CRASH_POINT("checkpoint.job.marked");
}

std::optional<Json> JobFolder::finished(std::string const& name) const {
  auto const mark = finished_marker_name(name);
  if (entry_at(work_, mark) != Entry::file || entry_at(work_, name) != Entry::file) {
    // A file without its marker is incomplete. The marker goes first, because it stands for a complete file.
    (void)work_.remove(mark, write_operation);
    (void)work_.remove(name, write_operation);
    return std::nullopt;
  }
  return load_json(work_, mark, restart_hint);
}

void JobFolder::finish_interrupted_commit() {
  if (!interrupted_commit_ || interrupted_commit_->to_out == request_.names) return;
  if (!request_.force || request_.resume) {
    throw FormatError({.operation = write_operation,
                       .message = "the job was killed while it committed a different set of files",
                       .expected = std::to_string(interrupted_commit_->to_out.size()) + " files",
                       .got = std::to_string(request_.names.size()),
                       .resource = work_.path().string(),
                       .hint = "restore the files beside the shards; or use `force` without `resume`, which completes "
                               "that commit and then writes again",
                       .section = to_string(ErrorSection::files)});
  }
  Commit(out_, work_).run(*interrupted_commit_);
  interrupted_commit_.reset();
}

void JobFolder::commit() {
  auto const plan = interrupted_commit_.value_or(
      CommitRecord{.from_out = files_to_replace(out_, request_.names), .to_out = request_.names});
  if (!interrupted_commit_) save_commit_record(work_, plan);
  CROSSRANK_CRASH_POINT("checkpoint.commit.planned");
  Commit pending_commit(out_, work_);
  try {
    pending_commit.run(plan);
  } catch (...) {
    keep_ = pending_commit.is_partial();
    throw;
  }
  interrupted_commit_.reset();
  CROSSRANK_CRASH_POINT("checkpoint.commit.done");
}

void JobFolder::remove() noexcept {
  if (keep_ || interrupted_commit_) return;  // the folder holds parts of the old or the new checkpoint
  try {
    remove_job(out_, work_);
    remove_empty(new_folders_);
  } catch (Error const&) {
    // The next job in this folder or `crossrank clean` removes the rest.
  }
}

void JobFolder::remove_after_success() noexcept {
  new_folders_.clear();
  remove();
  CROSSRANK_CRASH_POINT("checkpoint.commit.folder_removed");
}

}  // namespace crossrank::checkpoint
