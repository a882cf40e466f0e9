#pragma once
#include <memory>

#include <crossrank/collective.hpp>

#include "lib/node/group/node_comm.hpp"

namespace crossrank::queue {

/// Returns the memory that the ranks of a group share on this node; null when they do not share memory. For a group of
/// one rank, the first call creates it, and it lives as long as the group or its last user.
[[nodiscard]] std::shared_ptr<node::NodeComm> queue_node_comm(Collective const& group);

}  // namespace crossrank::queue
