#pragma once
#include <string>

#include <sys/types.h>

#include "lib/platform/fd.hpp"

namespace crossrank::tools {

/// Ends what a job's ranks have started when this process is killed and can no longer do so itself.
///
/// The kernel kills the ranks with their parent, but not their children. The guard is a process of its own, in a
/// session of its own and not a child of ours, that sleeps until our end of a socket closes, however that comes about.
/// Then it kills the process groups of the ranks, and every process that carries the job's id in its environment, until
/// it finds none. A process that has left its group and cleaned its environment escapes it.
class OrphanGuard {
 public:
  /// Starts it; `std::system_error` when there can be no process more. Call before anything that makes this process
  /// the parent of orphans.
  explicit OrphanGuard(std::string const& job_id);
  /// Waits until it has ended, a moment at most.
  ~OrphanGuard();
  OrphanGuard(OrphanGuard const&) = delete;
  OrphanGuard& operator=(OrphanGuard const&) = delete;

  /// A rank's process group.
  void watch(pid_t group) const noexcept;
  /// It has no member any more, and its number may come to mean another one.
  void forget(pid_t group) const noexcept;

 private:
  void say(pid_t number) const noexcept;
  platform::Fd ours_{};
};

}  // namespace crossrank::tools
