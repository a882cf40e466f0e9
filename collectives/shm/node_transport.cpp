#include "collectives/shm/node_transport.hpp"

#include <utility>

#include "collectives/shm/shm_transport.hpp"
#include "lib/node/group/group.hpp"

namespace crossrank {

std::shared_ptr<spi::Transport> node_transport(node::NodeOptions const& on_node, std::string name,
                                               std::vector<int> global_ranks,
                                               spi::TimeoutPolicy const& timeout_policy) {
  auto options = on_node;
  options.group_name = name;
  auto group = node::Group::of_node(node::NodeComm::join(options), std::move(name));
  return std::make_shared<shm::ShmTransport>(std::move(group), std::move(global_ranks), timeout_policy);
}

}  // namespace crossrank
