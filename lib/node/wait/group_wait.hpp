#pragma once
#include <cstdint>
#include <string_view>

#include <crossrank/spi/operation.hpp>

#include "lib/node/wait/adaptive_spin.hpp"
#include "lib/node/group/group_decision.hpp"
#include "lib/node/group/group_errors.hpp"
#include "lib/node/group/group_members.hpp"
#include "lib/node/group/rounds.hpp"
#include "lib/node/wait/wait_condition.hpp"

namespace crossrank::node {

class PeerWatchdog;

/// How a member of a group waits: it spins for as long as that has paid before, then sleeps on its doorbell. Between
/// two naps a `PeerWatchdog` checks the peers.
class GroupWait {
 public:
  GroupWait(GroupMembers const& members, Rounds& rounds, GroupDecision const& decision,
            GroupErrors const& errors) noexcept
      : members_(members), rounds_(rounds), decision_(decision), errors_(errors) {}

  /// Blocks until the condition holds. Throws the group's error if the group fails, also because a member that the
  /// condition waits for is lost or too slow.
  void wait_for(WaitCondition& condition, spi::TimeoutPolicy const& timeout_policy, std::string_view operation);
  /// Blocks until a round has passed; throws as `wait_for`.
  void wait_for_round(std::uint64_t round, spi::TimeoutPolicy const& timeout_policy, std::string_view operation);
  /// Checks, for a caller that polls a round, the members that have not arrived. Never blocks; the group may fail.
  void watch_round(PeerWatchdog& watchdog, std::uint64_t round);
  /// Returns whether a round has passed, without blocking. Throws the group's error if the round has failed, also
  /// because a member that it waits for is lost.
  [[nodiscard]] bool test_round(std::uint64_t round, std::string_view operation);

 private:
  GroupMembers const& members_;
  Rounds& rounds_;
  GroupDecision const& decision_;
  GroupErrors const& errors_;
  AdaptiveSpin spin_{};
};

}  // namespace crossrank::node
