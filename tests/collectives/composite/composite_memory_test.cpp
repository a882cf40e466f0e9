#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>

#include "lib/node/group/group.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/message_ranks.hpp"

namespace crossrank::test {
namespace {

constexpr std::int64_t too_long = std::int64_t{1} << 20;
constexpr std::uint64_t little = std::uint64_t{1} << 20;

/// Expects that `call` is refused on all ranks, and that the group stays usable.
void expect_refusal(Collective const& world, std::function<void()> const& call,
                    std::vector<int> const& short_of_memory) {
  for (int repeat = 0; repeat < 2; ++repeat) {
    auto const error = error_of<UnavailableError>(call);
    EXPECT_TRUE(error.group_usable);
    EXPECT_EQ(error.failed_ranks, short_of_memory);
    EXPECT_THAT(error.message, testing::HasSubstr("bytes")) << error.message;
    EXPECT_NE(error.hint, "");
    world.barrier();
  }
  auto token = Tensor::scalar<std::int32_t>(world.rank());
  world.broadcast(token, {3});
  EXPECT_EQ(token.item<std::int32_t>(), 3);
}

TEST(CompositeMemory, that_is_full_refuses_a_long_broadcast_on_all_ranks_and_the_group_stays_usable) {
  auto const body = [](Collective const& world, MemoryHub&) {
    auto tensor = Tensor::zeros({too_long}, Dtype::f32);
    expect_refusal(world, [&] { world.broadcast(tensor, {2}); }, {1, 2});
  };
  run_message_ranks(4, body, {.node_memory = true, .arena_cap = little});
}

TEST(CompositeMemory, that_is_full_refuses_a_long_all_gather_on_all_ranks_and_the_group_stays_usable) {
  auto const body = [](Collective const& world, MemoryHub&) {
    auto const mine = Tensor::zeros({too_long}, Dtype::f32);
    auto all = Tensor::zeros({world.world_size() * too_long}, Dtype::f32);
    expect_refusal(world, [&] { world.all_gather(all, mine); }, {0, 1, 2, 3});
  };
  run_message_ranks(4, body, {.node_memory = true, .arena_cap = little});
}

TEST(CompositeMemory, has_the_job_id_of_the_first_rank_for_inspect) {
  auto const body = [](Collective const& world, MemoryHub&) {
    auto const group = std::dynamic_pointer_cast<node::Group>(world.transport()->node_memory());
    ASSERT_NE(group, nullptr);
    EXPECT_STREQ(group->shared_comm()->header().job, "test of rank 0");
    world.barrier();
  };
  run_message_ranks(4, body, {.node_memory = true});
}

}  // namespace
}  // namespace crossrank::test
