#include "workspace/checkpoint/job_folder.hpp"

#include <algorithm>
#include <cerrno>
#include <set>
#include <system_error>
#include <utility>

#include <sys/file.h>

#include <crossrank/error.hpp>
#include <crossrank/log.hpp>

#include "lib/core/log.hpp"
#include "lib/platform/atomic_file.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/io_error.hpp"
#include "lib/platform/retry.hpp"
#include "workspace/checkpoint/file_pool.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr char const* operation = "checkpoint write";
constexpr std::string_view folder_prefix = ".crossrank-";
constexpr std::string_view old_prefix = "old.";
constexpr std::string_view mark_suffix = ".finished";
constexpr char const* lock_name = "lock";
constexpr char const* plan_name = "publishing";
constexpr mode_t folder_mode = S_IRWXU | S_IRWXG | S_IRWXO;  // less what the user's mask takes

bool exists(platform::Directory const& directory, std::string const& name) {
  struct stat status {};
  return platform::system().fstatat(directory.fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
}

/// Makes a folder that may be there; true when it was not.
bool make_folder(fs::path const& path) {
  auto const made =
      platform::retry_interrupted([&] { return platform::system().mkdirat(AT_FDCWD, path.c_str(), folder_mode); });
  if (made == 0) return true;
  if (errno != EEXIST) platform::throw_io(std::string(operation) + ": mkdir", path.string(), errno);
  return false;
}

/// The output, or the nearest folder above it that is there, is one.
void require_folder(fs::path const& path) {
  std::error_code error;
  if (path.empty()) {
    throw UsageError({.operation = operation,
                      .message = "the output has no name",
                      .remedy = "give the name of a directory; it is made when it is not there"});
  }
  if (fs::is_symlink(path, error) && !fs::exists(path, error)) {
    throw UsageError({.operation = operation,
                      .message = "the output is a link that leads nowhere",
                      .got = fs::read_symlink(path, error).string(),
                      .resource = path.string(),
                      .remedy = "make the directory that it leads to, or remove the link"});
  }
  if (!fs::exists(path, error) || fs::is_directory(path, error)) return;
  throw UsageError({.operation = operation,
                    .message = "the output must be a directory, and this is a file",
                    .resource = path.string(),
                    .remedy = "give the name of a directory; it is made when it is not there"});
}

bool make_folders(fs::path const& path) {
  std::error_code error;
  auto const parent = path.parent_path();
  if (!parent.empty() && !fs::exists(parent, error)) (void)make_folders(parent);
  return make_folder(path);
}

/// Takes the lock of a job's folder; nothing when a living process has it.
std::optional<platform::Fd> take_lock(platform::Directory const& work) {
  auto& os = platform::system();
  platform::Fd fd(platform::retry_interrupted(
      [&] { return os.openat(work.fd(), lock_name, O_CREAT | O_RDWR | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR); }));
  if (!fd) platform::throw_io(std::string(operation) + ": lock", work.path_of(lock_name), errno);
  // Where locks do not work (ENOLCK, EOPNOTSUPP) two jobs at once are up to the user.
  if (os.flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return std::nullopt;
  return fd;
}

void remove_all(platform::Directory const& parent, std::string const& folder) {
  auto const inner = platform::Directory::open(parent.path_of(folder), operation);
  for (auto const& name : inner.names(operation)) (void)inner.remove(name, operation);
  // A server may keep a removed file that somebody has open: the folder then stays, empty but for it.
  if (platform::system().unlinkat(parent.fd(), folder.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT &&
      errno != ENOTEMPTY && errno != EEXIST) {
    platform::throw_io(std::string(operation) + ": rmdir", parent.path_of(folder), errno);
  }
}

/// Whether a killed job had moved files of the checkpoint before into its folder.
bool holds_old(platform::Directory const& work) {
  auto const names = work.names(operation);
  return std::any_of(names.begin(), names.end(), [](auto const& name) { return name.starts_with(old_prefix); });
}

/// Other jobs' folders: those of the living are an error, those of the dead are removed. What a dead one holds of the
/// checkpoint before goes only by `force`.
void clear_others(platform::Directory const& out, std::string const& own, bool force) {
  for (auto const& name : out.names(operation)) {
    if (!name.starts_with(folder_prefix) || name == own) continue;
    {
      auto const other = platform::Directory::open(out.path_of(name), operation);
      auto const lock = take_lock(other);
      if (!lock) {
        throw UsageError({.operation = operation,
                          .message = "another job is writing there now",
                          .got = name,
                          .resource = out.path().string(),
                          .remedy = "wait for it to end, or give another directory"});
      }
      if (!force && holds_old(other)) {
        throw UsageError({.operation = operation,
                          .message = "a job was killed there while it replaced a checkpoint; its folder holds both",
                          .got = name,
                          .resource = out.path().string(),
                          .remedy = "start that job again with --resume, or --force to drop both"});
      }
    }
    remove_all(out, name);
  }
}

void require_free(platform::Directory const& out, JobRequest const& request) {
  if (request.force) return;
  std::set<std::string> const wanted(request.names.begin(), request.names.end());
  std::vector<std::string> taken;
  for (auto const& name : out.names(operation)) {
    if (is_checkpoint_file(name) || wanted.contains(name)) taken.push_back(name);
  }
  if (taken.empty()) return;
  throw UsageError({.operation = operation,
                    .message = "there is a checkpoint already",
                    .got = std::to_string(taken.size()) + " files, " + taken.front() + " among them",
                    .resource = out.path().string(),
                    .remedy = "give another directory, or --force to replace it",
                    .details = taken});
}

std::uint64_t bytes_in(platform::Directory const& work) {
  std::uint64_t bytes = 0;
  for (auto const& name : work.names(operation)) {
    struct stat status {};
    if (platform::system().fstatat(work.fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0)
      bytes += static_cast<std::uint64_t>(status.st_blocks) * 512U;
  }
  return bytes;
}

/// `bytes` must fit where `out` is; `have` of them are there already.
void require_room(platform::Directory const& out, std::uint64_t have, std::uint64_t bytes) {
  struct statvfs room {};
  if (platform::system().fstatvfs(out.fd(), &room) != 0)
    platform::throw_io(std::string(operation) + ": statvfs", out.path().string(), errno);
  auto const free = static_cast<std::uint64_t>(room.f_bavail) * room.f_frsize + have;
  if (free >= bytes) return;
  platform::throw_io(ErrorInfo{.operation = operation,
                               .message = "the disk is too small; nothing was written",
                               .expected = std::to_string(bytes) + " bytes",
                               .got = std::to_string(free) + " free",
                               .resource = out.path().string(),
                               .remedy = "free space there, or give a directory on a larger file system"},
                     ENOSPC);
}

Json load_json(platform::Directory const& work, std::string const& name) {
  auto const path = work.path() / name;
  auto const file = std::make_shared<FilePool>()->open(path);
  std::string text(static_cast<std::size_t>(file->size()), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  auto value = Json::parse(text, nullptr, false);
  if (value.is_discarded()) {
    throw FormatError({.operation = operation,
                       .message = "what a killed job noted cannot be read",
                       .resource = path.string(),
                       .remedy = "start again without --resume",
                       .section = "json"});
  }
  return value;
}

void save_json(platform::Directory const& work, std::string const& name, Json const& value) {
  auto const text = value.dump();
  platform::AtomicFile file(work, name, text.size(), operation);
  file.write(std::as_bytes(std::span(text)));
  file.publish();
}

/// Without the config, then the index, nobody takes the rest for a checkpoint: these go first.
int removal_rank(std::string const& name) {
  if (name == "config.json") return 0;
  return name.ends_with(".index.json") ? 1 : 2;
}

}  // namespace

bool is_checkpoint_file(std::string const& name) {
  if (name.starts_with('.')) return false;
  if (name == "config.json" || name.ends_with(".safetensors.index.json") || name.ends_with(".bin.index.json"))
    return true;
  return name.ends_with(".safetensors") || name.ends_with(".pth") || name.ends_with(".pt") ||
         (name.starts_with("pytorch_model") && name.ends_with(".bin"));
}

JobFolder::JobFolder(JobRequest request, platform::Directory out, platform::Directory work)
    : request_(std::move(request)), out_(std::move(out)), work_(std::move(work)) {}

JobFolder JobFolder::make(JobRequest const& request) {
  require_folder(request.out);
  bool const made_out = make_folders(request.out);
  auto out = platform::Directory::open(request.out, operation);
  auto const folder = std::string(folder_prefix) + request.id;
  bool const fresh = make_folder(out.path_of(folder));
  CROSSRANK_CRASH_POINT("checkpoint.job.made");
  JobFolder job(request, std::move(out), platform::Directory::open(request.out / folder, operation));
  job.made_out_ = made_out;
  auto lock = take_lock(job.work_);
  if (!lock) {
    throw UsageError({.operation = operation,
                      .message = "the same job is running there now",
                      .resource = request.out.string(),
                      .remedy = "wait for it to end, or give another directory"});
  }
  job.lock_ = std::move(*lock);
  try {
    clear_others(job.out_, folder, request.force);
    // A job that had begun to publish is complete: it is brought to its end.
    if (!fresh && !request.resume && !job.was_publishing()) {
      for (auto const& name : job.work_.names(operation)) {
        if (name != lock_name) (void)job.work_.remove(name, operation);
      }
    }
    if (!job.was_publishing()) {
      require_free(job.out_, request);
      require_room(job.out_, bytes_in(job.work_), request.bytes);
    }
  } catch (...) {
    // What can be resumed is left to be resumed.
    if (fresh || !request.resume) job.remove();
    throw;
  }
  CROSSRANK_CRASH_POINT("checkpoint.job.locked");
  return job;
}

void JobFolder::check(JobRequest const& request) {
  std::error_code error;
  auto folder = fs::absolute(request.out);
  bool const there = fs::exists(folder, error);
  // What does not exist will be made where its nearest parent is.
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  require_folder(folder);
  auto const out = platform::Directory::open(folder, operation);
  if (there) require_free(out, request);
  require_room(out, 0, request.bytes);
}

JobFolder JobFolder::open(JobRequest const& request) {
  auto const folder = request.out / (std::string(folder_prefix) + request.id);
  return JobFolder(request, platform::Directory::open(request.out, operation),
                   platform::Directory::open(folder, operation));
}

void JobFolder::mark_finished(std::string const& name, Json const& facts) const {
  save_json(work_, name + std::string(mark_suffix), facts);
  CROSSRANK_CRASH_POINT("checkpoint.job.marked");
}

std::optional<Json> JobFolder::finished(std::string const& name) const {
  auto const mark = name + std::string(mark_suffix);
  if (!exists(work_, mark) || !exists(work_, name)) {
    // A file without its mark is one that the killed job was writing.
    (void)work_.remove(name, operation);
    return std::nullopt;
  }
  return load_json(work_, mark);
}

bool JobFolder::was_publishing() const { return exists(work_, plan_name); }

bool JobFolder::move(platform::Directory const& from, std::string const& name, platform::Directory const& to,
                     std::string const& new_name, char const* what) {
  if (!exists(from, name)) return false;
  if (platform::system().renameat(from.fd(), name.c_str(), to.fd(), new_name.c_str()) != 0 &&
      !(errno == ENOENT && exists(to, new_name))) {  // NFS may send a request twice: done first, refused then
    platform::throw_io(std::string(operation) + ": " + what, from.path_of(name), errno);
  }
  moves_.push_back({&from == &out_, name, new_name});
  return true;
}

void JobFolder::move_old(std::vector<std::string> const& old) {
  for (auto const& name : old) {
    // A name of ours that is no longer in the job's folder is published already: a killed job went that far.
    bool const is_new = std::find(request_.names.begin(), request_.names.end(), name) != request_.names.end();
    if (is_new && !exists(work_, name)) continue;
    if (move(out_, name, work_, std::string(old_prefix) + name, "move the old checkpoint aside"))
      CROSSRANK_CRASH_POINT("checkpoint.publish.moved_old");
  }
  out_.sync(operation);
}

void JobFolder::publish() {
  std::vector<std::string> old;
  if (was_publishing()) {
    old = load_json(work_, plan_name).at("old").get<std::vector<std::string>>();
  } else {
    std::set<std::string> const wanted(request_.names.begin(), request_.names.end());
    for (auto const& name : out_.names(operation)) {
      if (is_checkpoint_file(name) || wanted.contains(name)) old.push_back(name);
    }
    std::stable_sort(old.begin(), old.end(),
                     [](auto const& a, auto const& b) { return removal_rank(a) < removal_rank(b); });
    save_json(work_, plan_name, Json{{"old", old}, {"new", request_.names}});
  }
  CROSSRANK_CRASH_POINT("checkpoint.publish.planned");
  try {
    move_old(old);
    for (std::size_t i = 0; i < request_.names.size(); ++i) {
      // The last name makes it a checkpoint: whatever it speaks of is there for good by then.
      if (i + 1 == request_.names.size()) out_.sync(operation);
      if (move(work_, request_.names[i], out_, request_.names[i], "publish"))
        CROSSRANK_CRASH_POINT("checkpoint.publish.named");
    }
    out_.sync(operation);
  } catch (...) {
    undo();
    throw;
  }
  moves_.clear();
  CROSSRANK_CRASH_POINT("checkpoint.publish.done");
}

void JobFolder::undo() noexcept {
  for (auto at = moves_.rbegin(); at != moves_.rend(); ++at) {
    auto const& from = at->out_to_work ? work_ : out_;
    auto const& to = at->out_to_work ? out_ : work_;
    bool done = false;
    for (int attempt = 0; attempt < 3 && !done; ++attempt)
      done = platform::system().renameat(from.fd(), at->to.c_str(), to.fd(), at->from.c_str()) == 0;
    keep_ = keep_ || !done;
  }
  moves_.clear();
  if (keep_)
    log_event(LogLevel::error, "the old checkpoint could not be put back", {{"folder", work_.path().string()}});
}

std::vector<CleanedJob> clean_jobs(fs::path const& path, bool dry_run) {
  std::vector<CleanedJob> jobs;
  auto const out = platform::Directory::open(path, operation);
  for (auto const& name : out.names(operation)) {
    if (!name.starts_with(folder_prefix)) continue;
    auto const work = platform::Directory::open(out.path_of(name), operation);
    CleanedJob job{.name = name, .bytes = bytes_in(work)};
    auto const lock = take_lock(work);
    if (!lock) {
      job.why = "its job is running";
    } else if (holds_old(work)) {
      job.why = "it holds the checkpoint that its job was replacing: start that job again with --resume";
    } else {
      job.removed = true;
      if (!dry_run) remove_all(out, name);
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

void JobFolder::remove() noexcept {
  if (keep_) return;  // parts of the old checkpoint are in there
  try {
    remove_all(out_, std::string(folder_prefix) + request_.id);
    if (made_out_) {
      // Only an empty one goes.
      static_cast<void>(platform::system().unlinkat(AT_FDCWD, request_.out.c_str(), AT_REMOVEDIR));
    }
  } catch (Error const&) {
    // The next job in this folder, and `crossrank clean`, remove what is left.
  }
}

void JobFolder::remove_after_success() noexcept {
  made_out_ = false;
  remove();
}

}  // namespace crossrank::checkpoint
