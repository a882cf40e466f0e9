#pragma once
#include <set>
#include <vector>

#include <signal.h>
#include <sys/types.h>

namespace crossrank::tools {

/// The processes of a job: its ranks, each with its process group, and what they left running when they ended.
class JobProcesses {
 public:
  /// Makes this process the parent of every orphan of the job.
  JobProcesses();

  void add(pid_t rank);
  /// Reaps one process that has ended; false when none has just now.
  struct Reaped {
    pid_t pid = 0;
    int status = 0;
  };
  [[nodiscard]] bool reap(Reaped& out);
  /// No process of the job is left, as far as `reap` has seen.
  [[nodiscard]] bool gone() const noexcept { return gone_; }
  [[nodiscard]] bool any_rank() const noexcept { return !running_.empty(); }
  /// Sends a signal to the groups of the ranks that run.
  void signal_ranks(int number) const;
  /// The same, and to everything that ended ranks have left behind.
  void signal_all(int number) const;

 private:
  std::set<pid_t> running_;
  bool gone_ = false;
};

}  // namespace crossrank::tools
