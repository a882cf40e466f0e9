#pragma once
#include <vector>

#include "lib/node/group/node_comm.hpp"

namespace crossrank::node {

/// Returns the ranks of the node that `waiter` ultimately waits for, ascending.
///
/// Follows the chains of waiting ranks through the groups and queues of the node, from those that `waiter` waits for
/// directly: a rank that only waits for others is not the cause. Returns `direct` where the chain leads nowhere, as
/// when all wait for each other. The state changes while it is read, so the answer is meaningful only for ranks that
/// have not made progress for a whole timeout.
[[nodiscard]] std::vector<int> blocking_ranks(NodeComm const& comm, std::vector<int> const& direct, int waiter);

}  // namespace crossrank::node
