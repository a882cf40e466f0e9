#include "workspace/checkpoint/write/job/orphaned_job.hpp"

#include <chrono>

#include <fcntl.h>

#include <crossrank/error.hpp>

#include "lib/platform/backoff.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/files/directory.hpp"
#include "lib/platform/system.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"
#include "workspace/checkpoint/write/job/dead_jobs.hpp"
#include "workspace/checkpoint/write/job/job_files.hpp"

namespace crossrank::checkpoint {
namespace {

// The kernel frees some gigabytes a second.
constexpr auto longest_wait = std::chrono::seconds(30);

/// The result of an attempt to remove the folder.
enum class Attempt : std::uint8_t { gone, locked, kept };

Attempt try_remove(platform::Directory const& out, std::string const& name) {
  if (entry_at(out, name) != Entry::folder) return Attempt::gone;
  try {
    auto const work = platform::Directory::open(out.path_of(name), write_operation);
    auto const lock = take_lock(work);
    if (!lock) return Attempt::locked;
    if (!lock_is_effective(work)) return Attempt::kept;
    complete_and_remove(out, work);
  } catch (IoError const&) {
    if (entry_at(out, name) == Entry::folder) throw;  // else another rank has removed it
  }
  return Attempt::gone;
}

}  // namespace

void remove_orphaned_job(std::filesystem::path const& out, std::string const& id, OutputFolder output) noexcept {
  try {
    auto const folder = platform::Directory::open(out, write_operation);
    platform::Deadline deadline(longest_wait);
    platform::Backoff backoff({.longest_sleep = std::chrono::milliseconds(20)});
    auto const name = folder_name(id);
    auto attempt = try_remove(folder, name);
    for (; attempt == Attempt::locked && !deadline.expired(); attempt = try_remove(folder, name)) {
      backoff.pause(deadline.next_wait());
      deadline.tick();
    }
    // Fails unless the folder is empty.
    if (attempt == Attempt::gone && output == OutputFolder::made_by_job)
      static_cast<void>(platform::system().unlinkat(AT_FDCWD, out.c_str(), AT_REMOVEDIR));
  } catch (Error const&) {
    // The next job in this folder or `crossrank clean` removes the rest.
  }
}

}  // namespace crossrank::checkpoint
