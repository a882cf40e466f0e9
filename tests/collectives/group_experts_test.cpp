#include <crossrank/mesh.hpp>

#include "tests/collectives/group_fixture.hpp"

namespace crossrank::test {
namespace {

using Sizes = std::vector<std::int64_t>;

/// What rank r's tokens are; uneven numbers of them, none on rank 1.
Tensor tokens_of(int rank) { return counting({rank == 1 ? 0 : 2 + rank, 3}, 1.F, static_cast<float>(100 * rank)); }

/// An expert doubles its input, plus its rank.
Tensor expert(Tensor const& hidden, int rank) {
  auto out = hidden.clone();
  for (auto& value : out.as_mutable<float>()) value = 2 * value + static_cast<float>(rank);
  return out;
}

void experts_match_the_serial_reference(GroupCoordinator const& group, std::vector<int> const& members,
                                        Collective const& world, bool sequence_parallel, bool explicit_sizes) {
  auto const mine = tokens_of(world.rank());
  std::vector<Tensor> all;
  Sizes sizes;
  for (int const rank : members) {
    all.push_back(tokens_of(rank));
    sizes.push_back(all.back().shape()[0]);
  }
  auto const extra = counting<std::int32_t>({mine.shape()[0]});
  auto const got = group.dispatch(
      mine, mine.clone(),
      {.is_sequence_parallel = sequence_parallel, .sizes = explicit_sizes ? sizes : Sizes{}, .extra_tensors = {extra}});
  EXPECT_TRUE(same(got.hidden_states, concat(all)));
  EXPECT_TRUE(same(got.router_logits, concat(all)));
  ASSERT_EQ(got.extra_tensors.size(), 1U);
  EXPECT_EQ(got.extra_tensors[0].dtype(), Dtype::i32);
  EXPECT_EQ(got.route.sizes(), sizes);
  auto const combined = group.combine(expert(got.hidden_states, world.rank()), got.route);
  // Serial: every member's expert sees these tokens, and their answers are added.
  auto expected = mine.clone();
  for (auto& value : expected.as_mutable<float>()) {
    float sum = 0;
    for (int const rank : members) sum += 2 * value + static_cast<float>(rank);
    value = sum;
  }
  EXPECT_TRUE(same(combined, expected));
}

class Experts : public testing::TestWithParam<int> {};

TEST_P(Experts, of_one_group_match_the_serial_reference) {
  int const n = GetParam();
  if (n == 1) {
    run_thread_ranks(1, [](Collective const& world) {
      auto const sent = whole(world).dispatch(tokens_of(0), tokens_of(0), {.is_sequence_parallel = true});
      EXPECT_TRUE(same(sent.hidden_states, tokens_of(0)));
    });
    return;
  }
  run_thread_ranks(n, [n](Collective const& world) {
    auto const group = whole(world, {.name = "ep"});
    std::vector<int> members(static_cast<std::size_t>(n));
    std::iota(members.begin(), members.end(), 0);
    for (bool const explicit_sizes : {true, false})
      experts_match_the_serial_reference(group, members, world, true, explicit_sizes);
    world.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Experts, testing::Values(1, 2, 3, 4),
                         [](auto const& each) { return std::to_string(each.param); });

void data_by_tensor_parallel(Collective const& world) {
  Mesh const mesh(world, {{"dp", 2}, {"tp", 2}});
  auto const dp = GroupCoordinator::create(world, mesh.groups("dp"), {.name = "dp"});
  auto const ep = whole(world, {.name = "ep", .data_parallel = dp});
  std::vector<int> const column{world.rank() % 2, world.rank() % 2 + 2};
  experts_match_the_serial_reference(ep, column, world, false, true);
  experts_match_the_serial_reference(ep, {0, 1, 2, 3}, world, true, true);
  world.barrier();
}

TEST(Experts, of_two_by_two_use_the_data_parallel_group_without_sequence_parallelism) {
  run_thread_ranks(4, data_by_tensor_parallel);
}

CROSSRANK_RANK_SCENARIO(experts) {
  auto world = connect();
  data_by_tensor_parallel(world);
  world.close();
  return 0;
}

TEST(Experts, of_two_by_two_processes_match_the_serial_reference) {
  auto const job = run_ranks(4, "experts");
  EXPECT_TRUE(job.ok()) << job.text();
}

TEST(Experts, that_change_nothing_give_the_tokens_times_the_ranks) {
  run_thread_ranks(3, [](Collective const& world) {
    auto const group = whole(world);
    auto const sent = group.dispatch(tokens_of(world.rank()), tokens_of(world.rank()), {.is_sequence_parallel = true});
    auto expected = tokens_of(world.rank());
    for (auto& value : expected.as_mutable<float>()) value *= 3;
    EXPECT_TRUE(same(group.combine(sent.hidden_states, sent.route), expected));
    world.barrier();
  });
}

TEST(Experts, are_refused_without_a_group_or_with_other_sizes_before_anything_is_sent) {
  run_thread_ranks(2, [](Collective const& world) {
    auto const group = whole(world);
    auto const tokens = counting({2, 3});
    EXPECT_THROW(static_cast<void>(group.dispatch(tokens, tokens)), UsageError);
    DispatchOptions const wrong{.is_sequence_parallel = true, .sizes = {2, 3, 4}};
    EXPECT_THROW(static_cast<void>(group.dispatch(tokens, tokens, wrong)), UsageError);
    DispatchOptions const not_mine{.is_sequence_parallel = true, .sizes = {3, 3}};
    EXPECT_THROW(static_cast<void>(group.dispatch(tokens, tokens, not_mine)), UsageError);
    auto const sent = group.dispatch(tokens, tokens, {.is_sequence_parallel = true, .sizes = {2, 2}});
    EXPECT_THROW(static_cast<void>(group.combine(tokens, sent.route)), UsageError);
    world.barrier();
  });
}

TEST(Experts, whose_tensors_do_not_fit_on_one_rank_end_the_call_on_all) {
  run_thread_ranks(3, [](Collective const& world) {
    auto const group = whole(world);
    auto const tokens = counting({2, 3});
    auto const logits = counting({world.rank() == 1 ? 3 : 2, 3});
    try {
      static_cast<void>(group.dispatch(tokens, logits, {.is_sequence_parallel = true}));
      ADD_FAILURE() << "it went through";
    } catch (UsageError const&) {
      EXPECT_EQ(world.rank(), 1);
    } catch (RemoteError const& e) {
      EXPECT_NE(world.rank(), 1);
      EXPECT_EQ(e.info().culprits, std::vector<int>{1});
    }
    world.barrier();
  });
}

}  // namespace
}  // namespace crossrank::test
