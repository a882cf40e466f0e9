#pragma once
#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include <crossrank/spi/operation.hpp>

#include "lib/core/at_rank.hpp"
#include "lib/node/group/group_members.hpp"
#include "lib/node/group/rounds.hpp"
#include "lib/node/wait/wait_condition.hpp"
#include "lib/platform/warning_schedule.hpp"

namespace crossrank::node {

/// Checks, between two naps of a waiting member, that the members it waits for are alive and make progress.
///
/// A deadline limits the time in which a member made no progress although this rank was awake to see it. So a job that
/// was suspended as a whole does not time out. While a member runs the caller's code inside a range or guard and its
/// watchdog thread sends heartbeats, the longer limit applies to it.
class PeerWatchdog {
 public:
  PeerWatchdog(GroupMembers const& members, Rounds& rounds, spi::TimeoutPolicy const& timeout_policy,
               std::string_view operation);
  /// Returns the longest time to sleep before the next poll.
  [[nodiscard]] std::chrono::nanoseconds slice() const noexcept { return slice_; }
  /// Fails the group if a member that the condition waits for is lost or has made no progress for too long.
  void poll(WaitCondition& condition);

 private:
  struct Watched {
    std::uint64_t progress = 0;
    std::uint64_t heartbeat = 0;
    std::chrono::nanoseconds silent{};  ///< time without progress
    std::chrono::nanoseconds limit{};   ///< of `silent`, at the last poll
    platform::WarningSchedule warnings{};
    std::chrono::nanoseconds without_heartbeat{};
  };
  [[nodiscard]] Watched& watched(int member) noexcept { return at_rank(watched_, member); }
  [[nodiscard]] Watched const& watched(int member) const noexcept { return at_rank(watched_, member); }
  /// Looks for a core dump of one member that the condition waits for and that has missed a heartbeat.
  void check_one_suspect(WaitCondition& condition);
  [[nodiscard]] bool is_too_slow(int member, std::chrono::nanoseconds awake, WaitCondition& condition);
  [[nodiscard]] bool has_heartbeat(int member) const noexcept;
  void drop_ranks_that_only_wait(std::vector<int>& slow) const;
  /// Returns whether a member with a lower rank waits here too. Then that one warns the user.
  [[nodiscard]] bool another_member_warns(WaitCondition& condition) const;
  void warn(int member, WaitCondition& condition) const;

  GroupMembers const& members_;
  Rounds& rounds_;
  spi::TimeoutPolicy timeout_policy_;
  std::string_view operation_;
  std::chrono::nanoseconds slice_;
  std::chrono::nanoseconds last_poll_;
  std::vector<Watched> watched_;  ///< by member
  int last_suspect_;              ///< the search for the next suspect begins behind this member
};

}  // namespace crossrank::node
