#pragma once
#include <memory>

#include <crossrank/collective.hpp>

#include "lib/node/group/node_comm.hpp"

namespace crossrank::queue {

/// The memory that the ranks of a group share on this node. A rank that is alone shares it with itself: it is
/// made at the first call, and goes with the group and the last user. Null where the ranks share none.
[[nodiscard]] std::shared_ptr<node::NodeComm> queue_node_comm(Collective const& group);

}  // namespace crossrank::queue
