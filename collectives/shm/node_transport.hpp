#pragma once
#include <memory>
#include <string>
#include <vector>

#include <crossrank/spi/transport.hpp>

#include "lib/node/rendezvous/rendezvous.hpp"

namespace crossrank {

/// Joins the ranks of a node and makes the group of all of them. Collective over the node. `global_ranks` holds the
/// job's rank of each rank on the node.
[[nodiscard]] std::shared_ptr<spi::Transport> node_transport(node::NodeOptions const& on_node, std::string name,
                                                             std::vector<int> global_ranks,
                                                             spi::TimeoutPolicy const& timeout_policy);

}  // namespace crossrank
