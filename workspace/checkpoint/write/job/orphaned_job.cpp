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

}  // namespace

void remove_orphaned_job(std::filesystem::path const& out, std::string const& id, OutputFolder output) noexcept {
  try {
    auto const folder = platform::Directory::open(out, write_operation);
    platform::Deadline deadline(longest_wait);
    platform::Backoff backoff({.longest_sleep = std::chrono::milliseconds(20)});
    auto const name = folder_name(id);
    auto attempt = remove_dead_job(folder, name);
    for (; attempt == Removal::locked && !deadline.expired(); attempt = remove_dead_job(folder, name)) {
      backoff.pause(deadline.next_wait());
      deadline.tick();
    }
    // Fails unless the folder is empty.
    if (attempt == Removal::gone && output == OutputFolder::made_by_job)
      static_cast<void>(platform::system().unlinkat(AT_FDCWD, out.c_str(), AT_REMOVEDIR));
  } catch (Error const&) {
    // The next job in this folder or `crossrank clean` removes the rest.
  }
}

}  // namespace crossrank::checkpoint
