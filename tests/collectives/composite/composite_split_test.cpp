#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>

#include "collectives/composite/composite_transport.hpp"
#include "collectives/shm/node_transport.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/message_ranks.hpp"

namespace crossrank::test {
namespace {

using spi::OpKind;

constexpr int split_ranks = 4;
constexpr int more_than_a_node_holds = 5000;

/// The node of the odd ranks has no memory for another group.
void expect_refusal(std::vector<std::vector<int>> const& lists) {
  auto const body = [&](Collective const& world, MemoryHub&) {
    auto const node = world.split({{0, 2}, {1, 3}});
    std::vector<Collective> held;
    if (world.rank() % 2 == 1) {
      error_of<UnavailableError>([&] {
        for (int i = 0; i < more_than_a_node_holds; ++i) held.push_back(node.split({{0, 1}}));
      });
    }
    world.barrier();
    auto const error = error_of<UnavailableError>([&] { static_cast<void>(world.split(lists)); });
    EXPECT_TRUE(error.group_usable);
    EXPECT_THAT(error.failed_ranks, testing::ElementsAre(1));
    world.barrier();
    held.clear();
    world.barrier();
    world.split(lists).close();
  };
  run_message_ranks(split_ranks, body, {.node_memory = true});
}

TEST(CompositeSplit, refuses_a_group_of_one_node_without_memory_on_all_ranks) { expect_refusal({{1, 3}, {0, 2}}); }

TEST(CompositeSplit, refuses_a_group_of_all_nodes_when_one_has_no_memory) { expect_refusal({{0, 1, 2, 3}}); }

/// The rank dies after its part between the nodes and before its part inside the node.
TEST(CompositeSplit, names_a_rank_that_dies_half_way_on_all_others) {
  auto const hub = std::make_shared<MemoryHub>(split_ranks);
  auto const job = "half-way-" + std::to_string(::getpid());
  auto const all = all_ranks(split_ranks);
  spi::TimeoutPolicy const policy{.timeout = step_timeout};
  spi::Signature const signature{.op_kind = OpKind::split, .digest = 42};
  std::latch others_are_done(split_ranks - 1);
  auto const body = [&](int rank) {
    auto across = message_transport(hub, rank, {});
    auto map = composite::NodeMap::exchange(*across, policy);
    auto local = node_transport({.key = {.job_id = job, .step = std::to_string(map.own)},
                                 .rank = map.place_of(rank),
                                 .ranks = 2,
                                 .global_rank = rank,
                                 .timeout = step_timeout,
                                 .cap_bytes = std::uint64_t{64} << 20,
                                 .threads = true},
                                "world", map.members_of(map.own), policy);
    auto bulk = across->split({.op_kind = OpKind::split}, all, "world/bulk", policy);
    if (rank == 3) {
      static_cast<void>(across->split(signature, all, "part", policy));
      hub->disconnect(rank);
      local.reset();
      others_are_done.wait();
      return;
    }
    composite::CompositeTransport world(
        {.across = std::move(across), .bulk = std::move(bulk), .local = std::move(local), .map = std::move(map)});
    auto const split = [&] { static_cast<void>(world.split(signature, all, "part", policy)); };
    auto const error = error_of<PeerLostError>(split);
    others_are_done.count_down();
    EXPECT_THAT(error.failed_ranks, testing::ElementsAre(3)) << error.message;
    EXPECT_FALSE(error.group_usable);
    EXPECT_THAT(error_of<PeerLostError>(split).failed_ranks, testing::ElementsAre(3));
  };
  std::vector<std::function<void()>> ranks;
  for (int rank = 0; rank < split_ranks; ++rank) ranks.emplace_back([=, &body] { body(rank); });
  for (auto const& error : run_threads(ranks)) EXPECT_EQ(text_of(error), "");
}

}  // namespace
}  // namespace crossrank::test
