#include <crossrank/mesh.hpp>

#include "tests/collectives/coordinator/group_fixture.hpp"

namespace crossrank::test {
namespace {

class Experts : public testing::TestWithParam<int> {};

TEST_P(Experts, of_one_group_match_the_serial_reference) {
  run_thread_ranks(GetParam(), experts_use_sequence_parallelism);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Experts, testing::Values(1, 2, 3, 4),
                         [](auto const& each) { return std::to_string(each.param); });

TEST(Experts, of_two_by_two_use_the_data_parallel_group_without_sequence_parallelism) {
  run_thread_ranks(4, experts_use_their_data_parallel_group);
}

CROSSRANK_RANK_SCENARIO(experts) { return run_connected(experts_use_their_data_parallel_group); }

TEST(Experts, of_two_by_two_processes_match_the_serial_reference) { expect_success(4, "experts"); }

TEST(Experts, return_the_tokens_times_the_ranks_when_they_change_nothing) {
  run_thread_ranks(3, [](Collective const& world) {
    auto const group = whole(world);
    auto const sent = group.dispatch(tokens_of(world.rank()), tokens_of(world.rank()), {.is_sequence_parallel = true});
    auto expected = tokens_of(world.rank());
    for (auto& value : expected.as_mutable<float>()) value *= 3;
    EXPECT_TRUE(same(group.combine(sent.hidden_states, sent.route), expected));
    world.barrier();
  });
}

TEST(Experts, stay_local_without_a_data_parallel_group) {
  run_thread_ranks(3, experts_without_a_data_parallel_group_stay_local);
}

TEST(Experts, are_refused_with_wrong_sizes_before_anything_is_sent) {
  run_thread_ranks(2, [](Collective const& world) {
    auto const group = whole(world);
    auto const tokens = counting({2, 3});
    DispatchOptions const wrong{.is_sequence_parallel = true, .sizes = {2, 3, 4}};
    EXPECT_THROW(static_cast<void>(group.dispatch(tokens, tokens, wrong)), UsageError);
    DispatchOptions const not_mine{.is_sequence_parallel = true, .sizes = {3, 3}};
    EXPECT_THROW(static_cast<void>(group.dispatch(tokens, tokens, not_mine)), UsageError);
    auto const sent = group.dispatch(tokens, tokens, {.is_sequence_parallel = true, .sizes = {2, 2}});
    EXPECT_THROW(static_cast<void>(group.combine(tokens, sent.route)), UsageError);
    world.barrier();
  });
}

TEST(Experts, end_the_call_on_all_ranks_when_tensors_do_not_fit_on_one) {
  run_thread_ranks(3, [](Collective const& world) {
    auto const group = whole(world);
    auto const tokens = counting({2, 3});
    auto const logits = counting({world.rank() == 1 ? 3 : 2, 3});
    try {
      static_cast<void>(group.dispatch(tokens, logits, {.is_sequence_parallel = true}));
      ADD_FAILURE() << "expected an exception";
    } catch (UsageError const&) {
      EXPECT_EQ(world.rank(), 1);
    } catch (RemoteError const& e) {
      EXPECT_NE(world.rank(), 1);
      EXPECT_EQ(e.info().failed_ranks, std::vector<int>{1});
    }
    world.barrier();
  });
}

}  // namespace
}  // namespace crossrank::test
