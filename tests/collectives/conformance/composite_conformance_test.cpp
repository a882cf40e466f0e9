#include <algorithm>

#include <gtest/gtest.h>

#include <crossrank/parallel.hpp>
#include <crossrank/workspace/shared_memory_workspace.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/collectives/conformance/conformance.hpp"
#include "tests/collectives/conformance/packet_cases.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/little_memory.hpp"
#include "tests/support/message_ranks.hpp"

namespace crossrank::test {
namespace {

class CompositeConformance : public testing::TestWithParam<ConformanceParameter> {};

TEST_P(CompositeConformance, holds) {
  auto const& parameter = GetParam();
  run_message_ranks(parameter.ranks,
                    [&](Collective const& world, MemoryHub&) {
                      run_conformance_case(parameter.test, {world, {}});
                    },
                    {.node_memory = true});
}

INSTANTIATE_TEST_SUITE_P(Case, CompositeConformance, testing::ValuesIn(packet_cases({2, 3, 4})),
                         [](auto const& one) { return parameter_name(one.param); });

TEST(CompositeTransport, uses_plain_shared_memory_for_groups_inside_a_node) {
  auto const body = [](Collective const& world, MemoryHub&) {
    EXPECT_EQ(world.backend(), "composite");
    auto const node = world.split_by(world.rank() % 2);
    EXPECT_EQ(node.backend(), "shm");
    EXPECT_EQ(node.world_size(), 2);
    auto const pair = world.split({{3, 0}, {1, 2}});
    EXPECT_EQ(pair.backend(), "composite");
    EXPECT_EQ(pair.local_size_in_group(), 1);
    EXPECT_EQ(pair.local_world_size(), 2);
    auto token = Tensor::scalar<std::int32_t>(world.rank());
    pair.broadcast(token);
    EXPECT_EQ(token.item<std::int32_t>(), world.rank() == 3 || world.rank() == 0 ? 3 : 1);
  };
  run_message_ranks(4, body, {.node_memory = true});
}

/// A large payload passes `across` at most once per node, whichever rank sends it.
TEST(CompositeTransport, sends_large_payloads_once_per_node) {
  auto const body = [](Collective const& world, MemoryHub&) {
    std::size_t const large = (std::size_t{5} << 20) + 17;
    for (int root = 0; root < world.world_size(); ++root) {
      auto bytes = pattern(world.rank() == root ? large : 0, root);
      bytes.resize(large);
      auto tensor = Tensor::from_blob(bytes.data(), {static_cast<std::int64_t>(large)}, Dtype::u8);
      world.broadcast(tensor, {root});
      EXPECT_EQ(bytes, pattern(large, root));
    }
    auto const size_of = [&](int rank) { return (std::size_t{1} << 19) * as_size(rank); };
    auto const all = world.all_gatherv(pattern(size_of(world.rank()), world.rank()));
    for (int rank = 0; rank < world.world_size(); ++rank) EXPECT_EQ(at_rank(all, rank), pattern(size_of(rank), rank));
  };
  run_message_ranks(5, body, {.node_memory = true});
}

/// Items of the receiver's node are views of shared memory. Items of other nodes are copies, also read-only.
TEST(CompositeTransport, gathers_from_both_nodes) {
  auto const body = [](Collective const& world, MemoryHub&) {
    for (bool const node_memory : {true, false}) {
      GatherOptions options;
      if (node_memory) options.workspace = SharedMemoryWorkspace(world);
      RankState state;
      state.config = {{"rank", world.rank()}};
      auto mine = Tensor::empty({30, 100}, Dtype::i32);
      std::ranges::fill(mine.as_mutable<std::int32_t>(), world.rank());
      state.weights.insert_or_assign("w", mine);
      auto states = get_configs_parallel(state, {1, 3, 0, 2}, world, options);
      ASSERT_EQ(states.size(), world.rank() == 1 ? 4U : 0U);
      int index = 0;
      for (auto const& item : states) {
        EXPECT_EQ(item.rank, (std::vector<int>{1, 3, 0, 2})[as_size(index++)]);
        EXPECT_EQ(item.state.config.at("rank"), item.rank);
        auto weight = item.state.weights.at("w");
        EXPECT_EQ(weight.shape(), (Shape{30, 100}));
        EXPECT_TRUE(std::ranges::all_of(weight.as<std::int32_t>(), [&](int v) { return v == item.rank; }));
        if (item.rank != 1) error_of<UsageError>([&] { static_cast<void>(weight.mutable_bytes()); });
      }
      states.close();
    }
  };
  run_message_ranks(4, body, {.node_memory = true});
}

TEST(CompositeTransport, refuses_different_ranks_or_exchange_backends_on_all_ranks) {
  auto const body = [](Collective const& world, MemoryHub&) {
    auto const tensor = Tensor::scalar<float>(1);
    auto const first = world.rank() == 0 ? 0 : 1;
    error_of<MismatchError>([&] { get_tensors_parallel(tensor, {first, 1 - first}, world).close(); });
  };
  run_message_ranks(3, body, {.node_memory = true});
}

TEST(CompositeTransport, reports_an_exception_in_an_open_range_to_all) {
  auto const body = [](Collective const& world, MemoryHub&) {
    auto const gather = [&] {
      auto items = get_tensors_parallel(Tensor::scalar<float>(1), world);
      if (items.is_receiver()) throw std::runtime_error("the disk is full");
      items.close();
    };
    if (world.rank() == 0) {
      EXPECT_THROW(gather(), std::runtime_error);
    } else {
      EXPECT_THAT(error_of<PeerLostError>(gather).failed_ranks, testing::ElementsAre(0));
    }
  };
  run_message_ranks(4, body, {.node_memory = true});
}

/// An owner answers the receiver whatever it waits for.
TEST(CompositeTransport, sends_items_while_their_owners_wait_elsewhere) {
  auto const body = [](Collective const& world, MemoryHub&) {
    auto const other = world.split({{0, 1, 2, 3}}, "other");
    auto const tensor_of = [](int rank, float shift) {
      return Tensor::of(std::vector<float>(50'000, shift + static_cast<float>(rank)), {50'000});
    };
    auto const expect_items = [&](CollectiveRange<Tensor>& items, float shift) {
      for (std::size_t i = items.size(); i-- > 0;)
        EXPECT_EQ(items[i].as<float>().back(), tensor_of(static_cast<int>(i), shift).as<float>().back());
    };
    // A collective, while the range is open.
    auto items = get_tensors_parallel(tensor_of(world.rank(), 0), world);
    expect_items(items, 0);
    other.barrier();
    items.close();
    // Two open ranges of one group, of which the second is read first.
    auto first = get_tensors_parallel(tensor_of(world.rank(), 100), world);
    auto second = get_tensors_parallel(tensor_of(world.rank(), 200), world);
    expect_items(second, 200);
    expect_items(first, 100);
    second.close();
    first.close();
    // A range inside another one, in the opposite direction.
    auto outer = get_tensors_parallel(tensor_of(world.rank(), 300), world);
    auto inner = get_tensors_parallel(tensor_of(world.rank(), 400), {3, 2, 1, 0}, other);
    expect_items(outer, 300);
    for (std::size_t i = 0; i < inner.size(); ++i)
      EXPECT_EQ(inner[i].as<float>().front(), 400 + static_cast<float>(3 - i));
    inner.close();
    outer.close();
    // A message that the receiver sends after it has read the items.
    auto last = get_tensors_parallel(tensor_of(world.rank(), 500), world);
    expect_items(last, 500);
    if (last.is_receiver()) {
      for (int rank = 1; rank < world.world_size(); ++rank) other.send(Tensor::scalar<int>(rank), rank);
    } else {
      auto told = Tensor::zeros({}, Dtype::i32);
      other.recv(told, 0);
      EXPECT_EQ(told.item<int>(), world.rank());
    }
    last.close();
  };
  run_message_ranks(4, body, {.node_memory = true});
}

TEST(CompositeTransport, reports_too_little_memory_for_an_item_and_ends_the_range) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer reserves most of the address space";
#endif
  auto const body = [](Collective const& world, MemoryHub&) {
    auto const mine = Tensor::zeros({world.rank() == 0 ? 1 : std::int64_t{64} << 20}, Dtype::u8);
    auto items = get_tensors_parallel(mine, world);
    if (items.is_receiver()) {
      LittleMemory const limit;
      error_of<UnavailableError>([&] { static_cast<void>(items[1]); });
    }
    items.close();
    world.barrier();
  };
  run_message_ranks(2, body, {.node_memory = true});
}

}  // namespace
}  // namespace crossrank::test
