#pragma once
#include <string>

#include <sys/types.h>

#include "lib/platform/files/fd.hpp"

namespace crossrank::tools {

/// Kills the processes that a job's ranks have started, when this process is killed and cannot do so itself.
///
/// The kernel kills the ranks together with their parent, but not the children of the ranks. The guard is a separate
/// process in its own session, and a child that only waits for `__WALL` see. It sleeps until our end of a socket
/// closes. Then it kills the process groups of the ranks and every process with the job's id in its environment, until
/// it finds none. A process that has left its group and cleared its environment escapes.
class OrphanGuard {
 public:
  /// Starts the guard. Throws `std::system_error` when no process can be created. Must be called before this process
  /// makes threads.
  explicit OrphanGuard(std::string const& job_id);
  /// Waits until the guard has ended, which takes only a moment, and reaps it.
  ~OrphanGuard();
  OrphanGuard(OrphanGuard const&) = delete;
  OrphanGuard& operator=(OrphanGuard const&) = delete;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Adds the process group of a rank.
  void watch(pid_t group) const noexcept;
  /// Removes a group without members, whose number may be reused.
  void forget(pid_t group) const noexcept;

 private:
  void say(pid_t number) const noexcept;
  platform::Fd ours_{};
  pid_t pid_ = -1;
};

}  // namespace crossrank::tools
