#include <type_traits>

#include <crossrank/mesh.hpp>

#include "tests/collectives/coordinator/group_fixture.hpp"
#include "tests/support/error_of.hpp"

namespace crossrank::test {
namespace {

using testing::HasSubstr;
using Groups = std::vector<std::vector<int>>;

static_assert(!std::is_convertible_v<GlobalRank, int> && !std::is_convertible_v<int, GlobalRank>);

std::string refusal(Collective const& world, Groups const& groups) {
  return refusal_of<UsageError>(
      [&] { static_cast<void>(GroupCoordinator::create(world, groups, {.name = "refused"})); });
}

TEST(GroupConstruction, picks_the_list_of_this_rank) {
  run_thread_ranks(4, [](Collective const& world) {
    auto const tp = GroupCoordinator::create(world, {{0, 1}, {2, 3}}, {.name = "tp"});
    auto const pp = GroupCoordinator::create(world, {{0, 2}, {1, 3}}, {.name = "pp"});
    EXPECT_EQ(tp.world_size(), 2);
    EXPECT_EQ(tp.rank(), world.rank() % 2);
    EXPECT_EQ(pp.rank(), world.rank() / 2);
    EXPECT_EQ(pp.first_rank(), GlobalRank{world.rank() % 2});
    EXPECT_EQ(pp.last_rank(), GlobalRank{world.rank() % 2 + 2});
    EXPECT_EQ(pp.next_rank(), GlobalRank{(world.rank() + 2) % 4});
    EXPECT_EQ(pp.prev_rank(), pp.next_rank());
    EXPECT_EQ(pp.is_first_rank(), world.rank() < 2);
    EXPECT_EQ(pp.is_last_rank(), world.rank() >= 2);
    EXPECT_EQ(pp.global_rank(), GlobalRank{world.rank()});
    EXPECT_EQ(pp.rank_in_group(pp.last_rank()), 1);
    EXPECT_THROW(static_cast<void>(pp.rank_in_group(GlobalRank{9})), UsageError);
    EXPECT_EQ(values_of(tp.all_reduce(counting({2}, 1.F, static_cast<float>(world.rank()))))[0],
              world.rank() < 2 ? 1.F : 5.F);
    tp.barrier();
    world.barrier();
  });
}

TEST(GroupConstruction, keeps_the_order_of_a_list) {
  run_thread_ranks(3, [](Collective const& world) {
    auto const group = GroupCoordinator::create(world, {{2, 0, 1}});
    EXPECT_EQ(group.rank(), (world.rank() + 1) % 3);
    EXPECT_EQ(group.first_rank(), GlobalRank{2});
    EXPECT_EQ(group.ranks(), (std::vector{GlobalRank{2}, GlobalRank{0}, GlobalRank{1}}));
    EXPECT_EQ(group.broadcast_object(world.rank()), 2);
    auto const gathered = group.all_gather(Tensor::of<int>(std::vector{world.rank()}, {1}));
    EXPECT_EQ(values_of<int>(gathered), (std::vector{2, 0, 1}));
    world.barrier();
  });
}

TEST(GroupConstruction, refuses_lists_that_are_no_partition_on_all_ranks) {
  run_thread_ranks(3, [](Collective const& world) {
    EXPECT_THAT(refusal(world, {{0, 1}}), HasSubstr("rank 2 is not listed"));
    EXPECT_THAT(refusal(world, {{0, 1}, {1, 2}}), HasSubstr("rank 1 is listed more than once"));
    EXPECT_THAT(refusal(world, {{0, 1, 2, 3}}), HasSubstr("0 to 2"));
    EXPECT_THAT(refusal(world, {{0, 1, -1, 2}}), HasSubstr("-1"));
    world.barrier();
  });
}

TEST(GroupConstruction, gives_unique_names_that_find_the_group_until_destroy) {
  run_thread_ranks(1, [](Collective const& world) {
    auto const first = whole(world, {.name = "found"});
    auto second = std::make_optional(whole(world, {.name = "found"}));
    EXPECT_EQ(first.unique_name(), "found:0");
    EXPECT_EQ(second->unique_name(), "found:1");
    EXPECT_EQ(GroupCoordinator::by_name("found:1").unique_name(), "found:1");
    first.destroy();
    first.destroy();
    EXPECT_THROW(static_cast<void>(GroupCoordinator::by_name("found:0")), UsageError);
    second.reset();
    EXPECT_THROW(static_cast<void>(GroupCoordinator::by_name("found:1")), UsageError);
    EXPECT_THROW(static_cast<void>(GroupCoordinator::by_name("found:7")), UsageError);
    EXPECT_EQ(whole(world, {.name = "found"}).unique_name(), "found:2");
  });
}

TEST(GroupConstruction, makes_every_call_after_destroy_a_usage_error) {
  run_thread_ranks(2, [](Collective const& world) {
    auto const group = whole(world);
    auto const copy = group;  // NOLINT(performance-unnecessary-copy-initialization): destroy() ends all copies
    world.barrier();
    group.destroy();
    EXPECT_THROW(copy.barrier(), UsageError);
    EXPECT_THROW(static_cast<void>(copy.rank()), UsageError);
    EXPECT_EQ(error_of<UsageError>([&] { static_cast<void>(copy.all_reduce(counting({1}))); }).operation, "all_reduce");
    EXPECT_EQ(error_of<UsageError>([&] { static_cast<void>(copy.is_last_rank()); }).operation, "is_last_rank");
    EXPECT_THROW(static_cast<void>(copy.broadcast_object(1)), UsageError);
    EXPECT_THROW(copy.send_tensor_dict({}), UsageError);
    EXPECT_THROW(static_cast<void>(copy.graph_capture()), UsageError);
    world.barrier();
  });
}

TEST(GroupConstruction, gives_dense_data_its_own_group_on_request) {
  run_thread_ranks(2, [](Collective const& world) {
    auto const group = whole(world, {.name = "two", .device_communicator = true});
    EXPECT_NE(group.device_group().transport(), group.cpu_group().transport());
    EXPECT_EQ(values_of(group.all_reduce(counting({1}, 1.F, 1.F)))[0], 2.F);
    auto const alike = whole(world);
    EXPECT_EQ(alike.device_group().transport(), alike.cpu_group().transport());
    EXPECT_THROW(static_cast<void>(whole(world, {.backend = "nccl"})), UnavailableError);
    world.barrier();
  });
}

TEST(GroupConstruction, has_a_no_op_graph_capture) {
  run_thread_ranks(1, [](Collective const& world) {
    auto const group = whole(world);
    EXPECT_EQ(group.graph_capture().context().stream, Stream());
    auto const capture = group.graph_capture({Stream()});
    EXPECT_EQ(capture.context().stream, Stream());
    EXPECT_EQ(current_stream(Device::cpu()), Stream());
  });
}

TEST(GroupConstruction, reserves_communication_buffers_by_name) {
  run_thread_ranks(1, [](Collective const& world) {
    auto const group = whole(world);
    group.prepare_communication_buffer_for_model({{"tokens", {4, 2}, Dtype::bf16}, {"logits", {4}, Dtype::f32}});
    EXPECT_EQ(group.communication_buffer("tokens").nbytes(), 16U);
    EXPECT_EQ(values_of(group.communication_buffer("logits")), std::vector<float>(4));
    auto const before = group.communication_buffer("logits").data();
    group.prepare_communication_buffer_for_model({{"logits", {4}, Dtype::f32}});
    EXPECT_EQ(group.communication_buffer("logits").data(), before);
    EXPECT_THROW(group.prepare_communication_buffer_for_model({{"logits", {5}, Dtype::f32}}), UsageError);
    EXPECT_THROW(static_cast<void>(group.communication_buffer("none")), UsageError);
  });
}

TEST(ParallelLayout, puts_tensor_parallelism_fastest) {
  auto const layout = parallel_layout({.pipeline_parallel = 4, .tensor_parallel = 2});
  EXPECT_EQ(layout.tensor_parallel, (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(layout.pipeline_parallel, (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_EQ(layout.data_parallel, (Groups{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}));
}

TEST(ParallelLayout, merges_data_context_and_tensor_axes_for_experts) {
  auto const layout = parallel_layout({.external_data_parallel = 2,
                                       .data_parallel = 2,
                                       .pipeline_parallel = 2,
                                       .prefill_context_parallel = 1,
                                       .tensor_parallel = 2});
  EXPECT_EQ(layout.expert_parallel, (Groups{{0, 1, 4, 5}, {2, 3, 6, 7}, {8, 9, 12, 13}, {10, 11, 14, 15}}));
  EXPECT_EQ(layout.data_parallel[0], (std::vector{0, 4}));
  EXPECT_EQ(parallel_layout({.prefill_context_parallel = 2, .tensor_parallel = 2}).prefill_context_parallel,
            (Groups{{0, 2}, {1, 3}}));
}

TEST(ParallelLayout, refuses_impossible_sizes) {
  EXPECT_THROW(static_cast<void>(parallel_layout({.data_parallel = 0})), UsageError);
  EXPECT_THROW(static_cast<void>(parallel_layout({.data_parallel = 1 << 20, .tensor_parallel = 1 << 20})), UsageError);
}

TEST(ExpertSizes, match_known_values) {
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(expert_sizes({500, 200, 256}, {.max_rows = 256}), (Sizes{256, 200, 256}));
  EXPECT_EQ(expert_sizes({500, 200, 256}, {.index = 1, .max_rows = 256}), (Sizes{244, 1, 1}));
  EXPECT_EQ(expert_sizes({500, 200, 256}), (Sizes{500, 200, 256}));
  EXPECT_EQ(expert_sizes({5, 4}, {.sequence_parallel = 2}), (Sizes{3, 3, 2, 2}));
  EXPECT_EQ(expert_sizes({5}, {.index = std::int64_t{1} << 62, .max_rows = 4}), (Sizes{1}));
  EXPECT_THROW(static_cast<void>(expert_sizes({-1})), UsageError);
  EXPECT_THROW(static_cast<void>(expert_sizes({1}, {.sequence_parallel = 0})), UsageError);
}

}  // namespace
}  // namespace crossrank::test
