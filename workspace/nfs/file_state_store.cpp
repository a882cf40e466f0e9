#include "workspace/nfs/file_state_store.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <system_error>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/environment.hpp"
#include "lib/core/log.hpp"
#include "workspace/nfs/retrying_read.hpp"
#include "workspace/nfs/modelopt_file.hpp"
#include "workspace/nfs/exit_hook.hpp"
#include "workspace/nfs/read_only_view.hpp"
#include "workspace/nfs/file_identity.hpp"

namespace crossrank::workspace {
namespace {

using platform::Directory;

constexpr std::size_t files_kept = 2;

/// A live writer removes its older files at any time, so a listed file may be gone when it is opened.
constexpr int listings_tried = 16;

void log_skipped(std::string const& path, FormatError const& error) {
  log_event(LogLevel::warning, "state file is damaged; reading the previous one",
            {{"file", path}, {"error", error.what()}});
}

/// Throws for a damaged newest file: an older file would hold another state than the rank wrote last.
[[noreturn]] void fail_damaged(FormatError const& error, std::size_t older) {
  auto info = error.info();
  if (older != 0) {
    info.details.push_back("older state files of the rank: " + std::to_string(older));
    info.hint = "write the state again, or read the previous one with Damaged::take_older";
  }
  throw FormatError(std::move(info));
}

void warn_of_deletion(std::string const& path) {
  log_event(LogLevel::warning,
            "deleting a state that an earlier process of this rank left on purpose; to read states, open the workspace "
            "without a rank (`open`); to keep them, set `existing` to keep",
            {{"file", path}});
}

/// The working directory may change during the lifetime of the workspace. Keeps an empty path empty; it is refused
/// later.
std::filesystem::path made_absolute(std::filesystem::path const& path) {
  std::error_code failed;
  auto whole = path.empty() ? path : std::filesystem::absolute(path, failed);
  return failed ? path : whole;
}

}  // namespace

FileStateStore::FileStateStore(std::filesystem::path const& path) : path_(made_absolute(path)) {}

std::shared_ptr<FileStateStore> FileStateStore::open_for_rank(std::filesystem::path const& path,
                                                              WorkspaceOptions const& options) {
  std::string const operation = "NFSWorkspace";
  auto const& launched = options.rank ? environment() : launched_environment();
  int const rank = options.rank ? *options.rank : launched.rank;
  if (rank < 0 || (options.world_size && rank >= *options.world_size)) {
    throw UsageError(ErrorInfo{
        .operation = operation,
        .message = rank < 0 ? "the rank is negative" : "the job has no such rank",
        .expected = options.world_size ? "a rank below " + std::to_string(*options.world_size) : std::string(),
        .got = "rank " + std::to_string(rank),
        .hint = "ranks count from 0; correct `rank` or `world_size` of the options of the workspace"});
  }
  std::shared_ptr<FileStateStore> store(new FileStateStore(path));
  store->rank_ = rank;
  store->existing_ = options.existing;
  store->format_ = options.format;
  store->world_size_ = options.world_size;
  // When the launcher's environment does not cover this rank, its world size does not apply either.
  if (!options.world_size && launched.announces_several() && rank < launched.world_size)
    store->world_size_ = launched.world_size;
  auto const directory = Directory::open(store->path_, operation, platform::IfMissing::create);
  if (options.existing != Existing::keep) {
    store->remove_stale(directory, operation, Own::keep);
    if (options.format == StateFormat::torch && options.existing != Existing::remove_killed)
      (void)directory.remove(torch_file_name(rank), operation);
  }
  finish_at_exit(*store);
  return store;
}

std::shared_ptr<FileStateStore> FileStateStore::open_for_reading(std::filesystem::path const& path) {
  std::shared_ptr<FileStateStore> store(new FileStateStore(path));
  (void)Directory::open(store->path_, "NFSWorkspace.open");
  return store;
}

FileStateStore::~FileStateStore() {
  forget_at_exit(*this);
  if (std::uncaught_exceptions() == 0) finish();
}

void FileStateStore::finish() noexcept {
  if (hung_.load(std::memory_order_relaxed)) return;      // it would keep the process from ending
  std::unique_lock const lock(mutex_, std::try_to_lock);  // another thread may be writing during exit
  if (!lock || published_.empty()) return;
  try {
    Directory directory;
    for (auto const& p : published_) {
      if (p.kept_by_range || !is_of_this_process(p.file)) continue;
      if (!p.file_lock && directory.fd() < 0) directory = Directory::open(path_, "NFSWorkspace");
      mark_finished(directory, p.file.name(), p.file_lock);
    }
  } catch (Error const& error) {
    log_event(LogLevel::warning, "cannot mark state files as finished", {{"error", error.what()}});
  }
}

void FileStateStore::forget_parents_files() noexcept {
  std::unique_lock const lock(mutex_, std::try_to_lock);
  if (lock) published_.clear();
}

void FileStateStore::check_reading_rank(int rank) const {
  if (rank >= 0 && (!world_size_ || rank < *world_size_)) return;
  throw UsageError(ErrorInfo{
      .operation = "NFSWorkspace.read",
      .message = rank < 0 ? "the rank is negative" : "the job has no such rank",
      .expected = world_size_ ? "a rank below " + std::to_string(*world_size_)
                              : "a rank of the job that wrote to this directory",
      .got = "rank " + std::to_string(rank),
      .resource = path_.string(),
      .hint = rank < 0 ? "" : "to read the states of another job, open the workspace without a rank (`open`)"});
}

int FileStateStore::writing_rank(char const* operation) const {
  if (rank_) return *rank_;
  throw UsageError(ErrorInfo{.operation = operation,
                             .message = "this workspace was opened for reading only",
                             .resource = path_.string(),
                             .hint = "construct an NFSWorkspace to write"});
}

bool FileStateStore::may_remove(Directory const& directory, std::string const& name, StateFileName const& file,
                                WriterState writer) const {
  bool const is_own = is_of_this_process(file);
  if (writer == WriterState::alive) {
    if (!is_own)
      log_event(LogLevel::warning, "another running process writes for the same rank in this directory",
                {{"file", directory.path_of(name)}});
    return false;
  }
  // Without locks, another store of this process may still need the file; a store that has ended marked its files.
  if (is_own) return writer != WriterState::unknown;
  if (writer == WriterState::unknown && existing_ != Existing::force) {
    log_event(LogLevel::warning,
              "keeping an earlier file of this rank, because no lock shows whether its writer is still running; if it "
              "has ended, use Existing::force, or `crossrank clean` with `force`",
              {{"file", directory.path_of(name)}});
    return false;
  }
  if (parse_state_file_name(name)) {
    if (auto const found = identify(directory, name); found.kind != FileIdentity::Kind::state) {
      log_event(LogLevel::warning, "kept a file that is named like a state of this rank but is not one",
                {{"file", directory.path_of(name)}, {"why", found.why}});
      return false;
    }
  }
  return true;
}

void FileStateStore::remove_stale(Directory const& directory, std::string const& operation, Own own) const {
  auto const files = files_of_rank(directory.names(operation), *rank_);
  bool warned = false;
  auto const remove = [&](std::string const& name, StateFileName const& file) {
    if (own == Own::keep && is_of_this_process(file)) return;
    auto const probe = probe_writer(directory, name);  // keeps new writers of this name out until the file is removed
    if (!may_remove(directory, name, file, probe.writer)) return;
    bool const on_purpose = probe.writer == WriterState::finished && own == Own::keep;
    if (on_purpose && existing_ == Existing::remove_killed) return;
    if (on_purpose && !std::exchange(warned, true)) warn_of_deletion(directory.path_of(name));
    (void)directory.remove(name, operation);
  };
  // The oldest first: a reader must not take an older state for the newest.
  for (std::size_t i = files.states.size(); i-- > 0;) remove(files.states[i].name(), files.states[i]);
  for (auto const& file : files.of_gathers) remove(file.name(), file);
  for (auto const& name : files.temporaries) remove(name, *parse_temporary(name));
}

void FileStateStore::remove_stale_before(Directory const& directory, StateFileName const& file,
                                         std::size_t kept) const {
  for (auto const& left : files_of_rank(directory.names("NFSWorkspace.write"), *rank_).states) {
    if (!is_of_this_process(left) || left.counter >= file.counter) continue;
    auto const writer = probe_writer(directory, left.name()).writer;
    if (writer != WriterState::dead && writer != WriterState::finished) continue;  // such as that of an open range
    if (++kept > files_kept) (void)directory.remove(left.name(), "NFSWorkspace.write");
  }
}

void FileStateStore::write(Json const& config, StateDict const& weights) {
  if (format_ == StateFormat::safetensors) {
    (void)publish(next_state_file(writing_rank("NFSWorkspace.write")), config, weights, false, {});
    return;
  }
  auto const rank = writing_rank("NFSWorkspace.write");
  write_modelopt_file(Directory::open(path_, "NFSWorkspace.write"), rank, config, weights);
  std::lock_guard const lock(mutex_);
  torch_written_ = true;
}

PublishedFile FileStateStore::write_for_range(Json const& config, StateDict const& weights, AtEnd at_end,
                                              OnProgress const& on_progress) {
  require_range_support();
  auto file = next_state_file(writing_rank("NFSWorkspace.write"));
  file.of_gather = at_end == AtEnd::withdrawn;
  return publish(file, config, weights, true, on_progress);
}

void FileStateStore::require_range_support() const {
  if (format_ != StateFormat::torch) return;
  throw UsageError(ErrorInfo{.operation = "NFSWorkspace.write",
                             .message = "this workspace writes torch archives, which a collective range cannot use",
                             .resource = path_.string(),
                             .hint = "use a workspace with StateFormat::safetensors"});
}

PublishedFile FileStateStore::publish(StateFileName const& file, Json const& config, StateDict const& weights,
                                      bool kept_by_range, OnProgress const& on_progress) {
  auto const directory = Directory::open(path_, "NFSWorkspace.write");
  auto written = write_state_file(directory, file, config, weights, on_progress);
  std::lock_guard const lock(mutex_);
  published_.push_back({.file = file, .file_lock = std::move(written.file_lock), .kept_by_range = kept_by_range});
  if (!kept_by_range) remove_older(directory, file, files_kept);
  return written.published;
}

void FileStateStore::withdraw(PublishedFile const& published) {
  std::lock_guard const lock(mutex_);
  remove_published(Directory::open(path_, "NFSWorkspace.close"),
                   [&](Published const& p) { return p.file == published.file; });
}

void FileStateStore::retire(PublishedFile const& published) {
  std::lock_guard const lock(mutex_);
  for (auto& p : published_) {
    if (p.file == published.file) p.kept_by_range = false;
  }
  remove_older(Directory::open(path_, "NFSWorkspace.close"), published.file, 1);
}

/// A file of an open range neither counts nor goes: it is not a state that the rank keeps.
void FileStateStore::remove_older(Directory const& directory, StateFileName const& file, std::size_t count) {
  auto const states = std::count_if(published_.begin(), published_.end(), [&](Published const& p) {
    return !p.kept_by_range && p.file.counter <= file.counter;
  });
  // With more states of its own, this store has removed those of others before. The call lists the directory.
  if (as_size(states) <= files_kept) remove_stale_before(directory, file, as_size(states));
  auto surplus = as_size(states) - std::min(as_size(states), count);
  remove_published(directory, [&](Published const& p) {
    if (surplus == 0 || p.kept_by_range || p.file.counter > file.counter) return false;
    --surplus;
    return true;
  });
}

void FileStateStore::abandon(PublishedFile const& published) noexcept {
  std::lock_guard const lock(mutex_);
  for (auto& p : published_) {
    if (p.file == published.file) p.kept_by_range = false;
  }
}

void FileStateStore::remove_published(Directory const& directory, std::function<bool(Published const&)> const& wanted) {
  // The oldest first: a reader must not take an older state for the newest.
  for (auto at = published_.begin(); at != published_.end();) {
    if (!wanted(*at)) {
      ++at;
      continue;
    }
    at->file_lock =
        platform::Fd();  // first: NFS renames a file that is removed while it is open, instead of removing it
    (void)directory.remove(at->file.name(), "NFSWorkspace");
    at = published_.erase(at);
  }
}

void FileStateStore::clean() {
  (void)writing_rank("NFSWorkspace.clean");
  auto const directory = Directory::open(path_, "NFSWorkspace.clean");
  std::lock_guard const lock(mutex_);
  remove_published(directory, [](Published const&) { return true; });
  if (std::exchange(torch_written_, false)) (void)directory.remove(torch_file_name(*rank_), "NFSWorkspace.clean");
  remove_stale(directory, "NFSWorkspace.clean", Own::remove);
}

std::optional<RankState> FileStateStore::read_newest(int rank, Damaged damaged) const {
  check_reading_rank(rank);
  std::string const operation = "NFSWorkspace.read";
  for (int listing = 0; listing < listings_tried; ++listing) {
    auto const directory = Directory::open(path_, operation);
    auto const files = files_of_rank(directory.names(operation), rank);
    auto const& states = require_one_writer(files, rank, path_.string(), operation);
    if (states.empty() && !files.torch) return std::nullopt;
    if (states.empty()) {
      if (auto state = read_modelopt_file(directory, rank)) return read_only_view(*std::move(state), rank);
      continue;
    }
    std::optional<FormatError> first_error;
    bool vanished = false;
    for (auto const& file : states) {
      auto const path = directory.path_of(file.name());
      try {
        auto fd = directory.open_file(file.name(), operation);
        if (fd) return read_only_view(StateFileReader(std::move(*fd), file, path).read(), rank);
        vanished = true;
        break;
      } catch (FormatError const& error) {
        if (damaged == Damaged::refuse) fail_damaged(error, states.size() - 1);
        log_skipped(path, error);
        if (!first_error) first_error = error;
      } catch (IoError const& error) {
        if (error.system_errno() != ESTALE) throw;
        vanished = true;  // its writer removed it during the read
        break;
      }
    }
    if (!vanished && first_error) throw FormatError(*first_error);
  }
  throw IoError(
      ErrorInfo{.operation = operation,
                .message = "the files of rank " + std::to_string(rank) + " disappeared on every attempt to read them",
                .resource = path_.string(),
                .hint = "read while the rank does not write, or use a collective range"});
}

RankState FileStateStore::read_published(PublishedFile const& published, ReadRetryPolicy const& retry_policy) const {
  try {
    return workspace::read_published(path_, published, retry_policy);
  } catch (IoError const& error) {
    if (error.system_errno() == ETIMEDOUT) note_hung();
    throw;
  }
}

}  // namespace crossrank::workspace
