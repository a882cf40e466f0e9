#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/message_ranks.hpp"

/// `all_to_allv` where some ranks share a node, and in groups of many ranks.
namespace crossrank::test {
namespace {

using Counts = std::vector<std::vector<std::int64_t>>;  ///< elements, by sender and receiver

std::int64_t value_of(int from, int to, std::int64_t at) { return (from * 1000 + to) * 10'000'000LL + at; }

/// Exchanges `counts` and expects that all elements arrive.
void exchange_parts(Collective const& world, Counts const& counts) {
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> expected;
  std::vector<std::int64_t> receive_counts;
  for (int peer = 0; peer < world.world_size(); ++peer) {
    for (std::int64_t at = 0; at < at_rank(at_rank(counts, world.rank()), peer); ++at)
      sent.push_back(value_of(world.rank(), peer, at));
    receive_counts.push_back(at_rank(at_rank(counts, peer), world.rank()));
    for (std::int64_t at = 0; at < receive_counts.back(); ++at) expected.push_back(value_of(peer, world.rank(), at));
  }
  auto const in = Tensor::of(sent, {static_cast<std::int64_t>(sent.size())});
  auto out = Tensor::zeros({static_cast<std::int64_t>(expected.size())}, Dtype::i64);
  world.all_to_allv(out, in, {.send = at_rank(counts, world.rank()), .receive = receive_counts});
  EXPECT_TRUE(std::ranges::equal(out.as<std::int64_t>(), expected)) << "rank " << world.rank();
}

Counts equal_counts(int ranks, std::int64_t count) {
  auto const size = as_size(ranks);
  return {size, std::vector(size, count)};
}

constexpr std::int64_t long_part = 40'000;
constexpr std::size_t long_bytes = long_part * sizeof(std::int64_t);

TEST(CompositeExchange, moves_any_parts_through_nodes_of_any_size) {
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (auto const& [ranks, per_host] : {std::pair{4, 2}, {5, 3}, {6, 2}, {4, 4}, {4, 0}}) {
    auto const body = [&](Collective const& world, MemoryHub&) {
      std::mt19937_64 random(seed);  // the same numbers on all ranks
      for (int repeat = 0; repeat < 8; ++repeat) {
        auto counts = equal_counts(world.world_size(), 0);
        for (auto& row : counts) {
          for (auto& count : row)
            count = std::uniform_int_distribution(0, 3)(random) == 0
                        ? 0
                        : std::uniform_int_distribution<std::int64_t>(1, repeat % 2 == 0 ? 20 : 60'000)(random);
        }
        exchange_parts(world, counts);
      }
    };
    run_message_ranks(ranks, body, {.node_memory = true, .ranks_per_host = per_host});
  }
}

TEST(CompositeExchange, sends_no_bytes_of_a_neighbour_as_packets) {
  auto const body = [](Collective const& world, MemoryHub& hub) {
    world.barrier();
    auto const neighbour = world.rank() ^ 1;
    auto const before = hub.sent_bytes(world.rank(), neighbour);
    exchange_parts(world, equal_counts(4, long_part));
    world.barrier();
    EXPECT_LT(hub.sent_bytes(world.rank(), neighbour) - before, std::size_t{4096});
    EXPECT_GE(hub.sent_bytes(world.rank(), (world.rank() + 2) % 4), long_bytes);
  };
  run_message_ranks(4, body, {.node_memory = true, .ranks_per_host = 2});
}

TEST(CompositeExchange, goes_by_packets_where_a_rank_has_no_shared_memory) {
  auto const body = [](Collective const& world, MemoryHub& hub) {
    auto counts = equal_counts(4, 10);
    counts[1][0] = long_part;  // more than rank 1 may store
    for (int repeat = 0; repeat < 2; ++repeat) exchange_parts(world, counts);
    world.barrier();
    EXPECT_GE(hub.sent_bytes(1, 0), 2 * long_bytes);
  };
  run_message_ranks(4, body, {.node_memory = true, .ranks_per_host = 2, .arena_cap = std::uint64_t{1} << 20});
}

TEST(CompositeExchange, names_two_ranks_of_one_node_that_disagree_on_all_ranks) {
  auto const body = [](Collective const& world, MemoryHub&) {
    auto counts = equal_counts(4, 3);
    for (int repeat = 0; repeat < 2; ++repeat) {
      if (world.rank() == 2) counts[2][3] = 4;  // rank 3 expects 3
      auto const error = error_of<MismatchError>([&] { exchange_parts(world, counts); });
      EXPECT_TRUE(error.group_usable);
      EXPECT_THAT(error.failed_ranks, testing::ElementsAre(2, 3));
      EXPECT_EQ(error.expected, "24");
      EXPECT_EQ(error.got, "32");
    }
    exchange_parts(world, equal_counts(4, 5));
  };
  run_message_ranks(4, body, {.node_memory = true, .ranks_per_host = 2});
}

TEST(MessageExchange, sends_each_byte_once_however_many_ranks_there_are) {
  constexpr int ranks = 144;
  auto const body = [](Collective const& world, MemoryHub& hub) {
    auto counts = equal_counts(ranks, 0);
    for (int from = 0; from < ranks; ++from) at_rank(at_rank(counts, from), (from + 1) % ranks) = long_part;
    world.barrier();
    std::size_t before = 0;
    for (int peer = 0; peer < ranks; ++peer) before += hub.sent_bytes(world.rank(), peer);
    exchange_parts(world, counts);
    std::size_t after = 0;
    for (int peer = 0; peer < ranks; ++peer) after += hub.sent_bytes(world.rank(), peer);
    EXPECT_LT(after - before, long_bytes + (std::size_t{64} << 10)) << "rank " << world.rank();
    world.barrier();
  };
  run_message_ranks(ranks, body);
}

}  // namespace
}  // namespace crossrank::test
