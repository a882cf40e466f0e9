#include "tests/collectives/coordinator/group_fixture.hpp"

namespace crossrank::test {
namespace {

class GroupDense : public testing::TestWithParam<int> {};

TEST_P(GroupDense, matches_the_serial_reference) {
  run_thread_ranks(GetParam(), [](Collective const& world) {
    dense_operations_match_the_serial_reference(world);
    uneven_operations_match_the_serial_reference(world);
    world.barrier();
  });
}

CROSSRANK_RANK_SCENARIO(group_dense) {
  return run_connected([](Collective const& world) {
    dense_operations_match_the_serial_reference(world);
    uneven_operations_match_the_serial_reference(world);
  });
}

TEST_P(GroupDense, matches_the_serial_reference_between_processes) { expect_success(GetParam(), "group_dense"); }

INSTANTIATE_TEST_SUITE_P(Ranks, GroupDense, testing::Values(1, 2, 3, 4),
                         [](auto const& each) { return std::to_string(each.param); });

TEST(GroupDense, joins_tensors_with_zero_rows) {
  run_thread_ranks(2, [](Collective const& world) {
    auto const group = whole(world);
    EXPECT_EQ(group.all_gatherv(counting({0, 4}), {0, 0}).shape(), (Shape{0, 4}));
    EXPECT_EQ(group.reduce_scatterv(counting({0, 4}), {0}, {0, 0}).shape(), (Shape{0, 4}));
    world.barrier();
  });
}

TEST(GroupDense, has_all_reduce_in_place_and_out_of_place) {
  run_thread_ranks(2, [](Collective const& world) {
    auto const group = whole(world);
    auto tensor = counting({3}, 1.F, 1.F);
    static_cast<void>(group.all_reduce(tensor));
    EXPECT_TRUE(same(tensor, counting({3}, 1.F, 1.F)));
    group.all_reduce_in_place(tensor, ReduceOp::max);
    EXPECT_TRUE(same(tensor, counting({3}, 1.F, 1.F)));
    world.barrier();
  });
}

TEST(GroupDense, broadcasts_in_place_from_every_source) {
  run_thread_ranks(3, [](Collective const& world) {
    auto const group = whole(world);
    for (int src = 0; src < 3; ++src) {
      auto tensor = counting({5}, 1.F, static_cast<float>(world.rank()));
      auto const back = group.broadcast(tensor, {src});
      EXPECT_EQ(back.data(), tensor.data());
      EXPECT_TRUE(same(tensor, counting({5}, 1.F, static_cast<float>(src))));
    }
    world.barrier();
  });
}

TEST(GroupDense, sends_to_the_next_and_receives_from_the_previous) {
  run_thread_ranks(3, [](Collective const& world) {
    auto const group = whole(world);
    group.send(counting({64}, static_cast<float>(world.rank() + 1)));
    EXPECT_TRUE(same(group.recv({64}, Dtype::f32), counting({64}, static_cast<float>((world.rank() + 2) % 3 + 1))));
    if (world.rank() == 0) group.send(counting({2}), 2);
    if (world.rank() == 2) {
      EXPECT_TRUE(same(group.recv({2}, Dtype::f32, 0), counting({2})));
    }
    EXPECT_THROW(group.send(counting({1}), world.rank()), UsageError);
    world.barrier();
  });
}

/// The tensors have equally many elements, so their sums would be of values that do not belong together.
TEST(GroupDense, refuses_to_scatter_sums_of_tensors_of_different_shapes) {
  for (std::int64_t const dim : {0, 1, 2}) {
    run_thread_ranks(2, [&](Collective const& world) {
      auto const group = whole(world);
      auto const tensor = counting(world.rank() == 0 ? Shape{2, 4, 6} : Shape{4, 6, 2});
      EXPECT_THROW(static_cast<void>(group.reduce_scatter(tensor, {dim})), MismatchError);
    });
  }
  run_thread_ranks(2, [](Collective const& world) {
    auto const group = whole(world);
    EXPECT_THROW(static_cast<void>(group.reduce_scatter(counting({2, 4}), {world.rank()})), MismatchError);
  });
}

TEST(GroupDense, refuses_ranks_dims_and_sizes_out_of_range) {
  run_thread_ranks(2, [](Collective const& world) {
    auto const group = whole(world);
    for (int const rank : {-1, 2}) {
      EXPECT_THROW(static_cast<void>(group.broadcast(counting({1}), {rank})), UsageError);
      EXPECT_THROW(static_cast<void>(group.gather(counting({1}), {.dst = rank})), UsageError);
      EXPECT_THROW(group.send(counting({1}), rank), UsageError);
      EXPECT_THROW(static_cast<void>(group.broadcast_tensor_dict({}, {rank})), UsageError);
      EXPECT_THROW(group.send_tensor_dict({}, {.dst = rank}), UsageError);
      EXPECT_THROW(static_cast<void>(group.recv_tensor_dict({.src = rank})), UsageError);
    }
    for (std::int64_t const dim : {-3, 2}) {
      EXPECT_THROW(static_cast<void>(group.all_gather(counting({2, 2}), {dim})), UsageError);
      EXPECT_THROW(static_cast<void>(group.reduce_scatter(counting({2, 2}), {dim})), UsageError);
      EXPECT_THROW(static_cast<void>(group.gather(counting({2, 2}), {.dim = dim})), UsageError);
    }
    EXPECT_THROW(static_cast<void>(group.all_gather(Tensor::scalar(1.F))), UsageError);
    EXPECT_THAT([&] { static_cast<void>(group.all_gather(Tensor{})); },
                testing::ThrowsMessage<UsageError>(testing::HasSubstr("tensor is undefined")));
    EXPECT_THROW(static_cast<void>(group.reduce_scatter(counting({3}))), UsageError);
    EXPECT_THROW(static_cast<void>(group.reduce_scatterv(counting({3}), {0}, {1, 1})), UsageError);
    EXPECT_THROW(static_cast<void>(group.all_gatherv(counting({3}), {3})), UsageError);
    EXPECT_THROW(static_cast<void>(group.all_gatherv(counting({3}), {2, 2})), UsageError);
    if (world.rank() == 1) {  // before the sizes are exchanged
      EXPECT_THROW(static_cast<void>(group.all_gatherv(std::vector{counting({3}), counting({2})})), UsageError);
    }
    EXPECT_THROW(static_cast<void>(group.all_gatherv(Tensor::scalar(1.F), {1, 1})), UsageError);
    world.barrier();
  });
}

TEST(GroupAlone, returns_its_input) {
  run_thread_ranks(1, [](Collective const& world) {
    auto const group = whole(world, {.broadcaster = false});
    auto const tensor = counting({2, 3});
    EXPECT_EQ(group.next_rank(), group.prev_rank());
    EXPECT_EQ(group.all_reduce(tensor).data(), tensor.data());
    EXPECT_EQ(group.all_gather(tensor, {9}).data(), tensor.data());
    EXPECT_EQ(group.reduce_scatter(tensor, {9}).data(), tensor.data());
    EXPECT_EQ(group.gather(tensor, {.dst = 9, .dim = 9}).data(), tensor.data());
    EXPECT_EQ(group.broadcast(tensor).data(), tensor.data());
    EXPECT_THROW(static_cast<void>(group.broadcast(tensor, {1})), UsageError);
    EXPECT_THROW(static_cast<void>(group.broadcast_object(1, {1})), UsageError);
    EXPECT_NE(group.all_reduce_out_place(tensor).data(), tensor.data());
    EXPECT_TRUE(same(group.all_gather_out_place(tensor, {1}), tensor));
    EXPECT_TRUE(same(group.reduce_scatter_out_place(tensor, {1}), tensor));
    EXPECT_TRUE(same(group.all_gatherv(tensor), tensor));
    EXPECT_TRUE(same(group.reduce_scatterv(tensor, {1}), tensor));
    group.send(tensor);
    EXPECT_TRUE(same(group.recv({2, 3}, Dtype::f32), tensor));
    EXPECT_EQ(group.broadcast_object(std::string("x")), "x");
    EXPECT_EQ(group.broadcast_tensor_dict({{"a", 1}}).get<int>("a"), 1);
    group.send_tensor_dict({{"a", 1}});
    EXPECT_TRUE(group.recv_tensor_dict().empty());
    group.barrier();
    std::vector<int> list{1, 2};
    EXPECT_EQ(&group.broadcast_object_list(list), &list);
    auto const sent = group.dispatch(tensor, tensor, {.extra_tensors = {tensor}});
    EXPECT_EQ(sent.hidden_states.data(), tensor.data());
    ASSERT_EQ(sent.extra_tensors.size(), 1U);
    EXPECT_EQ(group.combine(sent.hidden_states, sent.route).data(), tensor.data());
  });
}

}  // namespace
}  // namespace crossrank::test
