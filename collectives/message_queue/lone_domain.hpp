#pragma once
#include <memory>

#include <crossrank/collective.hpp>

#include "lib/node/domain.hpp"

namespace crossrank::queue {

/// The memory that the ranks of a group share on this node. A rank that is alone shares it with itself: made when it is
/// first asked for, gone with its last queue. Null where the ranks share none.
[[nodiscard]] std::shared_ptr<node::NodeDomain> queue_domain(Collective const& group);

}  // namespace crossrank::queue
