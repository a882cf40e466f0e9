#pragma once
#include <chrono>
#include <string_view>
#include <vector>

#include "lib/node/group/group.hpp"
#include "lib/platform/warning_schedule.hpp"

namespace crossrank::node {

/// What a member that waits does between two naps: looks whether those it waits for are still there and still moving.
///
/// A deadline counts the time that a member has made no progress while this rank was awake to see it: a job that was
/// suspended as a whole has not timed out. While a member runs the caller's code inside a range or guard and its
/// watchdog sends heartbeats, the longer limit holds for it.
class PeerWatchdog {
 public:
  PeerWatchdog(Group& group, spi::TimeoutPolicy const& timeout_policy, std::string_view operation);
  /// How long to sleep at most until the next look.
  [[nodiscard]] std::chrono::nanoseconds slice() const noexcept { return slice_; }
  /// Fails the group when a member that `condition` hangs on is lost or has been silent for too long.
  void look(Group::Condition& condition);

 private:
  struct Watched {
    std::uint64_t progress = 0;
    std::uint64_t heartbeat = 0;
    std::chrono::nanoseconds silent{};  ///< no progress
    std::chrono::nanoseconds limit{};   ///< of that silence, as of the last look
    platform::WarningSchedule warnings{};
    std::chrono::nanoseconds without_heartbeat{};  ///< no heartbeat of its watchdog
  };
  /// Looks for a core dump among those that `condition` hangs on and whose watchdog is silent.
  void check_one_suspect(Group::Condition& condition);
  [[nodiscard]] bool too_slow(int member, std::chrono::nanoseconds awake, Group::Condition& condition);
  void drop_ranks_that_only_wait(std::vector<int>& slow) const;
  /// Whether another member that waits here too has a lower rank: then it is the one to warn people.
  [[nodiscard]] bool another_member_warns(Group::Condition& condition) const;
  void warn(int member, Group::Condition& condition) const;

  Group& group_;
  spi::TimeoutPolicy timeout_policy_;
  std::string_view operation_;
  std::chrono::nanoseconds slice_;
  std::chrono::nanoseconds last_look_;
  std::vector<Watched> watched_;
  int next_suspect_;  ///< member at which the next look begins to search
};

}  // namespace crossrank::node
