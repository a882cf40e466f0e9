#include <vector>

#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/tensor/concat.hpp>

#include "lib/core/at_rank.hpp"
#include "tests/collectives/coordinator/group_values.hpp"
#include "tests/collectives/device/nccl_ranks.hpp"

/// Operations of the coordinator in the scope of a graph capture, and in graphs.
namespace crossrank::test {
namespace {

using cuda::Graph;

/// Sets the elements of a tensor on a GPU to 0, 1, 2, ... times `factor`, in the order of the current stream.
void fill(Tensor& tensor, float factor) { tensor.copy_from(counting(tensor.shape(), factor)); }

/// As vLLM's own test: two groups with different numbers of calls, in one scope.
CROSSRANK_RANK_SCENARIO(group_pairs_in_a_capture_scope) {
  auto world = connect_gpu_rank();
  CaseDevice const device(default_device());
  {
    auto const tp = made(world, pairs(4, 1), {.name = "tp"});
    bool const in_first_pair = world.rank() < 2;
    auto const scope = tp.graph_capture();
    auto tensor = counting({16, 64}, 0.F, 1.F);
    tensor = tp.all_reduce(tensor);
    if (in_first_pair) tensor = tp.all_reduce(tensor);
    EXPECT_TRUE(same(tensor, counting({16, 64}, 0.F, in_first_pair ? 4.F : 2.F)));
    // The same, in a graph.
    auto ones = counting({4, 4}, 0.F, 1.F);
    scope.context().stream.synchronize();
    Tensor reduced;
    auto const graph = Graph::capture(scope.context().stream, [&] {
      reduced = tp.all_reduce(ones);
      if (in_first_pair) reduced = tp.all_reduce(reduced);
    });
    graph.replay();
    EXPECT_TRUE(same(reduced, counting({4, 4}, 0.F, in_first_pair ? 4.F : 2.F)));
  }
  world.close();
  return end_gpu_rank();
}

TEST(GroupGraphOfPairs, does_not_interfere_with_others) { expect_job_ok(4, "group_pairs_in_a_capture_scope"); }

/// The results of one replay, for `factor` times the rank's inputs.
struct Captured {
  Tensor in_place{};
  Tensor reduced{};
  Tensor gathered{};
  Tensor scattered{};
  Tensor uneven{};
  Tensor broadcast{};
  Dispatched sent{};
  Tensor combined{};
};

Captured call_all(GroupCoordinator const& group, Tensor const& in, std::vector<std::int64_t> const& sizes) {
  Captured out;
  auto const own = at_rank(sizes, group.rank());
  out.in_place = in.clone();
  group.all_reduce_in_place(out.in_place);
  out.reduced = group.all_reduce(in, ReduceOp::sum, ReduceOrder::rank);
  out.gathered = group.all_gather(in, {1});
  out.scattered = group.reduce_scatter(in, {1});
  out.uneven = group.all_gatherv(in.narrow(0, 0, own), sizes);
  out.broadcast = group.broadcast(in.clone(), {group.world_size() - 1});
  out.sent = group.dispatch(in.narrow(0, 0, own), in.narrow(0, 1, own),
                            {.is_sequence_parallel = true, .sizes = sizes, .extra_tensors = {in.narrow(0, 2, own)}});
  out.combined = group.combine(out.sent.hidden_states, out.sent.route);
  return out;
}

void expect_captured(Captured const& got, GroupCoordinator const& group, Shape const& shape, float factor,
                     std::vector<std::int64_t> const& sizes) {
  auto const n = group.world_size();
  auto const me = group.rank();
  auto const own = at_rank(sizes, me);
  auto const of_rank = [&](int rank) { return counting(shape, factor * static_cast<float>(rank + 1)); };
  auto const sum = counting(shape, factor * static_cast<float>(n * (n + 1) / 2));
  std::vector<Tensor> all;
  std::vector<Tensor> rows;
  std::vector<Tensor> extras;
  for (int rank = 0; rank < n; ++rank) {
    auto const size = at_rank(sizes, rank);
    all.push_back(of_rank(rank));
    rows.push_back(all.back().narrow(0, 0, size));
    extras.push_back(all.back().narrow(0, 2, size));
  }
  EXPECT_TRUE(same(got.in_place, sum));
  EXPECT_TRUE(same(got.reduced, sum));
  EXPECT_TRUE(same(got.gathered, concat(all, {1})));
  auto const part = shape[1] / n;
  EXPECT_TRUE(same(got.scattered, slice(sum, {1}, me * part, part)));
  EXPECT_TRUE(same(got.uneven, concat(rows)));
  EXPECT_TRUE(same(got.broadcast, of_rank(n - 1)));
  EXPECT_TRUE(same(got.sent.hidden_states, concat(rows)));
  EXPECT_TRUE(same(got.sent.extra_tensors.at(0), concat(extras)));
  // All ranks return the tokens as they are, and the results are added.
  EXPECT_TRUE(same(got.combined, counting(shape, factor * static_cast<float>(n * (me + 1))).narrow(0, 0, own)));
}

CROSSRANK_RANK_SCENARIO(group_calls_in_a_graph) {
  auto world = connect_gpu_rank();
  CaseDevice const device(default_device());
  {
    auto const group = whole(world);
    auto const n = world.world_size();
    std::vector<std::int64_t> sizes;
    for (int rank = 0; rank < n; ++rank) sizes.push_back(rank % 3 + 1);
    Shape const shape{6, 2 * n};
    auto const own = static_cast<float>(world.rank() + 1);
    auto in = counting(shape, own);
    static_cast<void>(call_all(group, in, sizes));  // loads the kernels of the GPU
    auto const scope = group.graph_capture();
    auto const& stream = scope.context().stream;
    stream.synchronize();
    Captured captured;
    auto const graph = Graph::capture(stream, [&] { captured = call_all(group, in, sizes); });
    for (float const factor : {1.F, 2.F}) {
      fill(in, factor * own);
      graph.replay();
      expect_captured(captured, group, shape, factor, sizes);
    }
  }
  world.close();
  return end_gpu_rank();
}

class GroupGraph : public testing::TestWithParam<int> {};

TEST_P(GroupGraph, repeats_the_calls_of_the_coordinator) {
  expect_job_ok(GetParam(), "group_calls_in_a_graph", gpu_ranks(EmulatedNccl::newest, GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Ranks, GroupGraph, testing::Values(1, 2, 4, 8), testing::PrintToStringParamName());

}  // namespace
}  // namespace crossrank::test
