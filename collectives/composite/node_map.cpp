#include <algorithm>

#include "collectives/composite/composite_transport.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"

namespace crossrank::composite {

int NodeMap::place_of(int member) const {
  auto const& members = members_of(at_rank(node_of, member));
  return static_cast<int>(std::lower_bound(members.begin(), members.end(), member) - members.begin());
}

NodeMap NodeMap::exchange(spi::Transport& across, spi::TimeoutPolicy const& timeout_policy) {
  auto const ranks = as_size(across.world_size());
  std::int32_t const first = across.node_ranks().front();
  std::vector<std::int32_t> firsts(ranks);
  std::vector<std::size_t> const counts(ranks, sizeof first);
  across.wait(
      across.post_all_gatherv({.op_kind = spi::OpKind::all_gatherv}, {.bytes = std::as_bytes(std::span(&first, 1))},
                              counts, {.bytes = std::as_writable_bytes(std::span(firsts))}),
      timeout_policy);
  NodeMap map;
  for (std::size_t member = 0; member < ranks; ++member) {
    auto const found = std::find_if(map.nodes.begin(), map.nodes.end(),
                                    [&](auto const& node) { return node.front() == firsts[member]; });
    map.node_of.push_back(static_cast<int>(found - map.nodes.begin()));
    if (found == map.nodes.end()) {
      map.nodes.push_back({static_cast<int>(member)});
    } else {
      found->push_back(static_cast<int>(member));
    }
  }
  map.own = at_rank(map.node_of, across.rank());
  return map;
}

}  // namespace crossrank::composite
