#pragma once
#include <mutex>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "lib/platform/fork_safe_condition.hpp"

namespace crossrank::detail {

struct GroupState;

/// A thread that advances the non-blocking calls of all groups of a job while their callers compute.
///
/// It visits each group that has work, and polls with growing pauses while nothing moves. It never waits inside a
/// transport, because another group may get work meanwhile. A blocking call keeps it out of its group. Without work it
/// sleeps. The groups of the job hold it; the last of them ends it.
class ProgressThread {
 public:
  ProgressThread();
  ~ProgressThread();
  ProgressThread(ProgressThread const&) = delete;
  ProgressThread& operator=(ProgressThread const&) = delete;

  /// Tells the thread that the group has work.
  void add(GroupState& group);
  /// Forgets the group. Returns when the thread does not use it any more.
  void remove(GroupState& group) noexcept;

 private:
  void run() noexcept;
  struct Visits {
    bool moved = false;       ///< an operation has taken a step
    bool unfinished = false;  ///< a group has messages that its visit has not reached
  };
  /// Visits all groups with work once.
  [[nodiscard]] Visits visit_groups(std::unique_lock<std::mutex>& lock);
  void add_once(GroupState& group);

  std::mutex mutex_{};
  platform::ForkSafeCondition changed_{};
  std::vector<GroupState*> with_work_{};
  std::vector<GroupState*> to_visit_{};  ///< rest of the present round
  GroupState* visited_ = nullptr;        ///< in use by the thread at the moment
  bool stopping_ = false;
  pid_t const process_;
  std::thread thread_{};
};

}  // namespace crossrank::detail
