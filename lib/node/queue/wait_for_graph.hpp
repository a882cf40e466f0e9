#pragma once
#include <vector>

#include "lib/node/group/node_comm.hpp"

namespace crossrank::node {

/// Ranks of the node that keep `waiter` waiting in the end, ascending.
///
/// Follows who waits for whom through the groups and queues of the node, from those that `waiter` waits for directly: a
/// rank that only waits for others is not why nothing moves. Returns `direct` where the chain leads to nobody, as when
/// all wait for each other. What it reads moves on meanwhile: the answer is of use for ranks that have not moved for a
/// whole timeout.
[[nodiscard]] std::vector<int> blocking_ranks(NodeComm const& comm, std::vector<int> const& direct, int waiter);

}  // namespace crossrank::node
