#pragma once
#include <set>
#include <vector>

#include <signal.h>
#include <sys/types.h>

namespace crossrank::tools {

/// The processes of a job: its ranks, each with its process group, and the processes that ended ranks left running.
///
/// This process may have other children: those of the program that it was before `exec`, and the guard of the job.
class JobProcesses {
 public:
  /// Makes this process the parent of all orphans of the job. Its children so far do not belong to the job. `guard` is
  /// the one that waits do not see (`OrphanGuard`).
  explicit JobProcesses(pid_t guard);

  void add(pid_t rank);
  /// Reaps one process that has ended; false when there is none at the moment.
  struct Reaped {
    pid_t pid = 0;
    int status = 0;
  };
  [[nodiscard]] bool reap(Reaped& out);
  /// Returns whether all processes of the job have ended, as far as `reap` has seen.
  [[nodiscard]] bool gone() const noexcept { return gone_; }
  [[nodiscard]] bool any_rank() const noexcept { return !running_.empty(); }
  /// Sends a signal to the process groups of the running ranks.
  void signal_ranks(int number) const;
  /// Sends a signal to the ranks and to all processes that ended ranks left running.
  void signal_all(int number) const;

 private:
  /// Returns the children that belong to the job.
  [[nodiscard]] std::vector<pid_t> own_children() const;

  pid_t guard_;
  std::set<pid_t> foreign_;
  std::set<pid_t> running_;
  bool gone_ = false;
};

}  // namespace crossrank::tools
