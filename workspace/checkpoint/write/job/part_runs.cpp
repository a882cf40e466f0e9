#include "workspace/checkpoint/write/job/part_runs.hpp"

#include <cerrno>
#include <cstddef>
#include <string_view>

#include <sys/file.h>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/host.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/random.hpp"
#include "lib/platform/retry.hpp"
#include "lib/platform/system.hpp"
#include "workspace/checkpoint/write/job/job_files.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr int max_attempts = 10;
constexpr std::size_t longest_identity = 256;

platform::Fd open_run(platform::Directory const& work, std::string const& name, int flags) {
  return platform::Fd(platform::retry_interrupted([&] {
    return platform::system().openat(work.fd(), name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
  }));
}

/// Returns whether the run was on this host, where locks are reliable, and its process has ended.
bool is_dead(platform::Fd const& run) {
  std::string identity(longest_identity, '\0');
  auto const got = platform::system().pread(run.get(), identity.data(), identity.size(), 0);
  identity.resize(got > 0 ? as_size(got) : 0);
  return !identity.empty() && identity == platform::this_host().id &&
         platform::system().flock(run.get(), LOCK_EX | LOCK_NB) == 0;
}

void remove_files_of(platform::Directory const& work, std::string const& id) {
  auto const prefix = part_file_prefix + id + ".";
  for (auto const& name : work.names(write_operation)) {
    if (name.starts_with(prefix)) (void)work.remove(name, write_operation);
  }
}

}  // namespace

bool has_unfinished_parts(platform::Directory const& work) {
  return entry_at(work, parts_record_name) == Entry::file && entry_at(work, commit_record_name) != Entry::file &&
         entry_at(work, published_name) != Entry::file;
}

bool any_part_runs(platform::Directory const& work) {
  for (auto const& name : work.names(write_operation)) {
    if (!name.starts_with(run_prefix)) continue;
    auto const run = open_run(work, name, O_RDONLY);
    if (run && platform::system().flock(run.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) return true;
  }
  return false;
}

void remove_dead_runs(platform::Directory const& work) {
  for (auto const& name : work.names(write_operation)) {
    if (!name.starts_with(run_prefix)) continue;
    auto const run = open_run(work, name, O_RDONLY);
    if (!run || !is_dead(run)) continue;
    remove_files_of(work, name.substr(std::string_view(run_prefix).size()));
    (void)work.remove(name, write_operation);
  }
}

PartRun::PartRun(platform::Directory const& work) : work_(work) {
  for (int attempt = 0; attempt < max_attempts; ++attempt) {
    if (try_begin()) return;
  }
  throw IoError({.operation = write_operation,
                 .message = "another process removes files of this part while they are made",
                 .resource = work.path().string()});
}

/// Returns false if another process took the file for that of a killed run, before it was locked.
bool PartRun::try_begin() {
  id_ = platform::random_hex(std::string(write_operation));
  auto const name = run_prefix + id_;
  auto& os = platform::system();
  lock_ = open_run(work_, name, O_CREAT | O_EXCL | O_RDWR);
  if (!lock_) platform::throw_io(std::string(write_operation) + ": create", work_.path_of(name), errno);
  // Some file systems have no locks. A process that looks for killed runs holds this one for a moment: without the
  // lock, it would take this run for one of them.
  if (os.flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    (void)work_.remove(name, write_operation);
    return false;
  }
  auto const identity = platform::this_host().id;
  // Without the identity, no other process takes the run for a killed one.
  static_cast<void>(os.pwrite(lock_.get(), identity.data(), identity.size(), 0));
  CROSSRANK_CRASH_POINT("parts.begun");
  return entry_at(work_, name) == Entry::file;
}

PartRun::~PartRun() {
  try {
    // A listing would be slow in a folder with thousands of files.
    for (auto const& name : working_names_) (void)work_.remove(name, write_operation);
    (void)work_.remove(run_prefix + id_, write_operation);
  } catch (Error const&) {
    // The next part on this host, `finish_parts` or `crossrank clean` removes the rest.
  }
}

std::string PartRun::working_name(std::string const& name) {
  std::lock_guard const lock(mutex_);
  return *working_names_.insert(part_file_prefix + id_ + "." + name).first;
}

}  // namespace crossrank::checkpoint
