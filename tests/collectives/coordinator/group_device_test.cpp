#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/collectives/coordinator/group_suite.hpp"
#include "tests/collectives/coordinator/group_values.hpp"
#include "tests/collectives/device/nccl_ranks.hpp"

/// The coordinator with tensors on emulated GPUs: with NCCL, and through host memory.
namespace crossrank::test {
namespace {

GroupCase const& find_group_case(std::string const& name) {
  return *std::find_if(group_suite().begin(), group_suite().end(),
                       [&](GroupCase const& one) { return one.name == name; });
}

CROSSRANK_RANK_SCENARIO(group_case_on_gpu) {
  auto world = connect_gpu_rank();
  CaseDevice const device(default_device());
  find_group_case(self.arguments.at(0)).body(world);
  auto const group = whole(world);
  static_cast<void>(group.all_reduce_out_place(counting({1})));
  EXPECT_EQ(group.device_group().device_backend(), self.arguments.at(1));
  EXPECT_EQ(group.cpu_group().device_backend(), "none") << "no tensor of the group has used it";
  world.close();
  return end_gpu_rank();
}

void run_group_case(GroupParameter const& parameter, EmulatedNccl version, std::string backend) {
  auto options = gpu_ranks(version, parameter.ranks);
  options.arguments = {std::string(parameter.test.name), std::move(backend)};
  expect_job_ok(parameter.ranks, "group_case_on_gpu", std::move(options));
}

class GroupOnNccl : public testing::TestWithParam<GroupParameter> {};

TEST_P(GroupOnNccl, holds) { run_group_case(GetParam(), EmulatedNccl::newest, "nccl"); }

INSTANTIATE_TEST_SUITE_P(Case, GroupOnNccl, testing::ValuesIn(group_device_parameters({1, 2, 4, 8})),
                         [](auto const& one) { return group_parameter_name(one.param); });

class GroupOnStaged : public testing::TestWithParam<GroupParameter> {};

TEST_P(GroupOnStaged, holds) { run_group_case(GetParam(), EmulatedNccl::none, "staged"); }

INSTANTIATE_TEST_SUITE_P(Case, GroupOnStaged, testing::ValuesIn(group_device_parameters({1, 2, 4, 8})),
                         [](auto const& one) { return group_parameter_name(one.param); });

/// Returns whether all elements have the value. Makes one copy of a long tensor, on the host.
bool all_are(Tensor const& tensor, float value) {
  auto const host = on_host(tensor);
  auto const elements = host.as<float>();
  return std::all_of(elements.begin(), elements.end(), [&](float element) { return element == value; });
}

/// The long tensors of vLLM's own tests.
CROSSRANK_RANK_SCENARIO(group_of_long_tensors) {
  auto world = connect_gpu_rank();
  CaseDevice const device(default_device());
  Shape const shape{16, 1024, 1024};
  auto const filled_with = [&](float value) {
    auto tensor = Tensor::zeros(shape, Dtype::f32, default_device());
    tensor.copy_from(Tensor::of(std::vector<float>(as_size(shape.numel()), value), shape));
    return tensor;
  };
  auto const group = whole(world);
  auto const own = static_cast<float>(world.rank());
  auto tensor = filled_with(1);
  group.all_reduce_in_place(tensor);
  EXPECT_TRUE(all_are(tensor, 2));
  if (group.is_first_rank()) group.send(tensor);
  if (group.is_last_rank()) {
    tensor = {};
    EXPECT_TRUE(all_are(group.recv(shape, Dtype::f32), 2));
  }
  for (int src = 0; src < world.world_size(); ++src) {
    tensor = {};
    tensor = filled_with(own);
    EXPECT_TRUE(all_are(group.broadcast(tensor, {src}), static_cast<float>(src)));
    current_stream(default_device()).synchronize();
  }
  world.close();
  return end_gpu_rank();
}

TEST(GroupOnGpus, moves_long_tensors) { expect_job_ok(2, "group_of_long_tensors"); }

/// Ranks compare their calls once for all tensors of a list, and NCCL carries them in one launch.
CROSSRANK_RANK_SCENARIO(group_lists_in_one_call) {
  auto world = connect_gpu_rank();
  CaseDevice const device(default_device());
  auto const group = whole(world);
  static_cast<void>(group.all_reduce_out_place(counting({1})));
  for (bool const equal : {true, false}) {
    std::vector<std::int64_t> sizes;
    for (int rank = 0; rank < world.world_size(); ++rank) sizes.push_back(equal ? 4 : 2 + rank);
    auto const rows = at_rank(sizes, world.rank());
    auto const tokens = counting({rows, 8});
    auto const logits = counting({rows, 3});
    auto const scales = counting<std::int32_t>({rows});
    reset_emulated_counts();
    auto const sent = group.dispatch(tokens, logits,
                                     {.is_sequence_parallel = true, .sizes = sizes, .extra_tensors = {scales, tokens}});
    EXPECT_EQ(emulated_count("nccl_kernel"), 1U) << "equal sizes: " << equal;
    EXPECT_EQ(emulated_count("host_wait"), 0U);
    EXPECT_TRUE(same(sent.extra_tensors.at(1), sent.hidden_states));
  }
  world.close();
  return end_gpu_rank();
}

TEST(GroupOnGpus, dispatches_all_tensors_in_one_call_of_nccl) { expect_job_ok(3, "group_lists_in_one_call"); }

/// Returns values of very different sizes, whose sums depend on the order.
Tensor values_of_all_sizes(int rank, Shape const& shape) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < shape.numel(); ++i) {
    auto const number = static_cast<double>(i * 4 + rank + 1);
    values.push_back(static_cast<float>(std::sin(number) * std::pow(10.0, std::fmod(number, 9))));
  }
  return Tensor::of(values, shape);
}

CROSSRANK_RANK_SCENARIO(group_reductions_in_rank_order) {
  auto world = connect_gpu_rank();
  CaseDevice const device(default_device());
  auto const group = whole(world);
  auto const n = std::int64_t{world.world_size()};
  auto const host = values_of_all_sizes(world.rank(), {2 * n, 3 * n});
  auto const gpu = on_device(host);
  std::vector<std::int64_t> sizes(as_size(n), 2);
  --sizes.front();
  ++sizes.back();
  auto const sum = ReduceOp::sum;
  auto const ranked = ReduceOrder::rank;
  auto const expected = group.all_reduce(host);
  EXPECT_FALSE(same(on_host(group.all_reduce(gpu)), expected)) << "NCCL has an order of its own";
  EXPECT_TRUE(same(on_host(group.all_reduce(gpu, sum, ranked)), expected));
  EXPECT_TRUE(same(on_host(group.all_reduce_out_place(gpu, sum, ranked)), expected));
  auto in_place = gpu.clone();
  group.all_reduce_in_place(in_place, sum, ranked);
  EXPECT_TRUE(same(on_host(in_place), expected));
  for (std::int64_t const dim : {0, 1}) {
    EXPECT_TRUE(same(on_host(group.reduce_scatter(gpu, {dim}, ranked)), group.reduce_scatter(host, {dim})));
    EXPECT_TRUE(same(on_host(group.reduce_scatter_out_place(gpu, {dim}, ranked)), group.reduce_scatter(host, {dim})));
  }
  EXPECT_TRUE(same(on_host(group.reduce_scatterv(gpu, {0}, sizes, ranked)), group.reduce_scatterv(host, {0}, sizes)));
  auto const route = group.dispatch(gpu.narrow(0, 0, 2), gpu.narrow(0, 0, 2), {.is_sequence_parallel = true}).route;
  EXPECT_TRUE(same(on_host(group.combine(gpu, route, ranked)), group.combine(host, route)));
  world.close();
  return end_gpu_rank();
}

TEST(GroupOnGpus, reduces_in_rank_order_with_the_bits_of_the_cpu) {
  expect_job_ok(4, "group_reductions_in_rank_order");
}

CROSSRANK_RANK_SCENARIO(group_lists_that_differ) {
  auto world = connect_comparing_gpu_rank();
  CaseDevice const device(default_device());
  auto const group = whole(world);
  std::vector<Tensor> const list{counting({2, 3}), counting({2, 4 + world.rank()})};
  try {
    static_cast<void>(group.all_gatherv(list, {2, 2}));
    ADD_FAILURE() << "no error";
  } catch (MismatchError const& e) {
    EXPECT_EQ(e.info().operation, "all_gatherv");
    EXPECT_THAT(e.what(), testing::HasSubstr("rows of [2, 5]"));
  }
  return end_gpu_rank();
}

TEST(GroupOnGpus, refuses_lists_that_differ_between_ranks) {
  expect_job_ok(2, "group_lists_that_differ");
  expect_job_ok(2, "group_lists_that_differ", gpu_ranks(EmulatedNccl::none));
}

}  // namespace
}  // namespace crossrank::test
