#include <stdexcept>

#include "tests/collectives/coordinator/group_fixture.hpp"
#include "tests/collectives/unwritable_object.hpp"

namespace crossrank::test {
namespace {

class GroupQueue : public testing::TestWithParam<int> {};

TEST_P(GroupQueue, carries_objects_of_rank_0_and_leaves_others_to_the_transport) {
  run_thread_ranks(GetParam(), objects_are_sent_by_queue, {.arena_cap = std::uint64_t{256} << 20});
}

CROSSRANK_RANK_SCENARIO(group_queue) { return run_connected(objects_are_sent_by_queue); }

TEST_P(GroupQueue, carries_objects_between_processes) { expect_success(GetParam(), "group_queue"); }

INSTANTIATE_TEST_SUITE_P(Ranks, GroupQueue, testing::Values(1, 2, 3, 4),
                         [](auto const& each) { return std::to_string(each.param); });

/// Some ranks would read the queue and others wait for the group, and no rank would ever answer.
TEST(GroupQueue, is_not_used_when_ranks_pass_different_sources) {
  run_thread_ranks(3,
                   [](Collective const& world) {
                     auto const checking =
                         make_collective(world.transport(), world.timeout_policy(), CheckLevel::collective);
                     auto const group = whole(checking, {.broadcaster = true});
                     EXPECT_EQ(group.broadcast_object(world.rank(), {1}), 1);
                     EXPECT_EQ(group.broadcast_object(world.rank(), {0}), 0);
                     try {
                       static_cast<void>(group.broadcast_object(1, {world.rank() == 1 ? 1 : 0}));
                       ADD_FAILURE() << "expected an exception";
                     } catch (MismatchError const& e) {
                       EXPECT_EQ(e.operation(), "broadcast_object");
                       EXPECT_THAT(e.what(), testing::HasSubstr("rank 1 calls broadcast_object root 1"));
                       EXPECT_THAT(e.what(), testing::HasSubstr("ranks 0, 2 call broadcast_object root 0"));
                     }
                   },
                   {.arena_cap = std::uint64_t{256} << 20});
}

TEST(GroupQueue, reports_an_object_that_cannot_be_serialized_to_readers) {
  run_thread_ranks(3,
                   [](Collective const& world) {
                     auto const group = whole(world, {.broadcaster = true});
                     if (world.rank() == 0) {
                       EXPECT_THROW(static_cast<void>(group.broadcast_object(Unwritable{})), std::out_of_range);
                     } else {
                       EXPECT_THROW(static_cast<void>(group.broadcast_object(Unwritable{})), RemoteError);
                     }
                     EXPECT_EQ(group.broadcast_object(world.rank()), 0);
                     world.barrier();
                   },
                   {.arena_cap = std::uint64_t{256} << 20});
}

TEST(GroupQueue, is_created_by_the_coordinator_in_both_directions) {
  for (int const ranks : {1, 2, 3, 4}) {
    run_thread_ranks(ranks, a_queue_reaches_all_ranks);
    run_thread_ranks(ranks, queues_of_all_ranks_reach_one);
  }
}

TEST(GroupQueue, accepts_a_writer_from_outside_the_group) { run_thread_ranks(3, queues_take_a_writer_from_outside); }

}  // namespace
}  // namespace crossrank::test
