#pragma once
#include "lib/node/group/group_members.hpp"
#include "lib/node/group/rounds.hpp"
#include "lib/node/wait/wait_condition.hpp"

namespace crossrank::node {

/// Fails the group if a member that the condition waits for has died or left. Never blocks.
void fail_if_lost(GroupMembers const& members, Rounds& rounds, WaitCondition& condition) noexcept;

}  // namespace crossrank::node
