#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>
#include <crossrank/group.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/collectives/algorithms/serial_reduction.hpp"
#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/support/emulated_driver.hpp"

/// Reductions of GPU tensors in rank order, which NCCL exchanges and a kernel combines.
namespace crossrank::test {
namespace {

/// No driver of a GPU as old as that loads the kernels.
constexpr char const* too_old = "35";

class RankOrder : public testing::TestWithParam<int> {
 protected:
  static void run(std::string_view scenario, EmulatedNccl version = EmulatedNccl::newest) {
    expect_job_ok(GetParam(), scenario, gpu_ranks(version));
  }
  /// Rank 0 alone has no kernels.
  static void run_without_kernels(std::string_view scenario) {
    auto options = gpu_ranks();
    options.rank_environment[0]["EMULATED_GPU_CAPABILITY"] = too_old;
    expect_job_ok(GetParam(), scenario, std::move(options));
  }
};

/// Returns the values of this rank, on the CPU.
Tensor own_values(Collective const& world, Dtype dtype, std::int64_t count) {
  auto tensor = Tensor::empty({count}, dtype);
  auto const bytes = random_elements(dtype, as_size(count), 100U + static_cast<std::uint32_t>(world.rank()));
  std::copy(bytes.begin(), bytes.end(), tensor.mutable_bytes().begin());
  return tensor;
}

std::vector<std::byte> bytes_of(Tensor const& tensor) {
  auto const host = tensor.to(Device::cpu());
  return {host.bytes().begin(), host.bytes().end()};
}

/// Reduces the same values on the CPU and on the GPU.
class Comparison {
 public:
  Comparison(Collective const& world, Dtype dtype, ReduceOp op, std::int64_t count)
      : world_(world),
        op_(op),
        values_(own_values(world, dtype, count)),
        name_(std::string(name_of(dtype)) + ", op " + std::to_string(static_cast<int>(op)) + ", " +
              std::to_string(count) + " elements") {}

  void all_reduce() const {
    expect_equal("all_reduce", [&](Tensor tensor) {
      world_.all_reduce(tensor, op_, ReduceOrder::rank);
      return tensor;
    });
    expect_equal("fused iall_reduce", [&](Tensor const& tensor) {
      std::vector<Tensor> several{tensor.clone(), tensor.clone()};
      world_.iall_reduce(std::span<Tensor>(several), op_, ReduceOrder::rank).wait();
      return several[1];
    });
  }
  void reduce() const {
    for (int const root : {0, world_.world_size() - 1}) {
      expect_equal("reduce", [&](Tensor tensor) {
        world_.reduce(tensor, op_, {root}, ReduceOrder::rank);
        return tensor;
      });
    }
  }
  void reduce_scatter() const {
    auto const part = values_.numel() / world_.world_size();
    auto const whole = values_.narrow(0, 0, part * world_.world_size());
    expect_equal(
        "reduce_scatter",
        [&](Tensor const& tensor) {
          auto out = Tensor::empty({part}, tensor.dtype(), tensor.device());
          world_.reduce_scatter(out, tensor, op_, ReduceOrder::rank);
          return out;
        },
        whole);
    // Rank r has r rows, and the last rank has the rest too.
    auto rows = per_rank<std::int64_t>(world_.world_size());
    std::iota(rows.begin(), rows.end(), 0);
    rows.back() = values_.numel() - std::accumulate(rows.begin(), rows.end() - 1, std::int64_t{0});
    expect_equal("ireduce_scatterv", [&](Tensor const& tensor) {
      auto out = Tensor::empty({at_rank(rows, world_.rank())}, tensor.dtype(), tensor.device());
      world_.ireduce_scatterv(out, tensor, {.rows = rows}, op_, ReduceOrder::rank).wait();
      return out;
    });
  }

 private:
  void expect_equal(char const* call, std::function<Tensor(Tensor)> const& reduce_one) const {
    expect_equal(call, reduce_one, values_);
  }
  void expect_equal(char const* call, std::function<Tensor(Tensor)> const& reduce_one, Tensor const& values) const {
    EXPECT_EQ(bytes_of(reduce_one(values.clone().to(default_device()))), bytes_of(reduce_one(values.clone())))
        << call << " of " << name_;
  }

  Collective const& world_;
  ReduceOp op_;
  Tensor values_;
  std::string name_;
};

// ---------------------------------------------------------------- bits

CROSSRANK_RANK_SCENARIO(rank_order_of_all_dtypes) {
  auto const world = connect_gpu_rank();
  for_each_reduction([&](Dtype dtype, ReduceOp op) {
    Comparison const comparison(world, dtype, op, 37);
    comparison.all_reduce();
    comparison.reduce_scatter();
  });
  EXPECT_EQ(world.device_backend(), "nccl");
  EXPECT_GT(emulated_count("cuLaunchKernel"), 0U);
  for (auto const* call : {"ncclAllReduce", "ncclReduce", "ncclReduceScatter"}) EXPECT_EQ(emulated_count(call), 0U);
  return end_gpu_rank();
}

TEST_P(RankOrder, has_the_bits_of_the_cpu_for_all_dtypes_and_ops) { run("rank_order_of_all_dtypes"); }

CROSSRANK_RANK_SCENARIO(rank_order_of_long_values) {
  auto const world = connect_gpu_rank();
  for (std::int64_t const count : {1, 12'000, 12'001}) {
    // The sums of these numbers depend on the order.
    Comparison const comparison(world, Dtype::f64, ReduceOp::sum, count < 10 ? 10 : count);
    comparison.all_reduce();
    comparison.reduce();
    comparison.reduce_scatter();
    Comparison(world, Dtype::bf16, ReduceOp::avg, count).all_reduce();
  }
  return end_gpu_rank();
}

TEST_P(RankOrder, has_the_bits_of_the_cpu_for_short_and_long_values) { run("rank_order_of_long_values"); }
TEST_P(RankOrder, works_with_a_library_that_lacks_the_newer_functions) {
  run("rank_order_of_long_values", EmulatedNccl::v2_18);
}

/// A result that no kernel can write where it is.
CROSSRANK_RANK_SCENARIO(rank_order_without_alignment) {
  auto const world = connect_gpu_rank();
  for (std::int64_t const count : {20, 20'000}) {
    auto const host = own_values(world, Dtype::f32, count);
    auto const memory = Tensor::empty({4 * count + 1}, Dtype::u8, default_device());
    auto odd = Tensor::from_blob(memory.data() + 1, {count}, Dtype::f32, default_device());
    odd.copy_from(host);
    world.all_reduce(odd, ReduceOp::sum, ReduceOrder::rank);
    auto expected = host.clone();
    world.all_reduce(expected);
    EXPECT_EQ(bytes_of(odd), bytes_of(expected));
  }
  return end_gpu_rank();
}

TEST_P(RankOrder, handles_tensors_without_alignment) { run("rank_order_without_alignment"); }

// ---------------------------------------------------------------- what it costs

CROSSRANK_RANK_SCENARIO(rank_order_costs) {
  auto const world = connect_gpu_rank();
  auto small = filled(world, 100);
  auto large = filled(world, 120'000);
  world.all_reduce(small, ReduceOp::sum, ReduceOrder::rank);
  current_stream(default_device()).synchronize();
  for (auto* const tensor : {&small, &large}) {
    reset_emulated_counts();
    world.all_reduce(*tensor, ReduceOp::sum, ReduceOrder::rank);
    EXPECT_EQ(emulated_count("nccl_kernel"), tensor == &small ? 1U : 2U);
    EXPECT_EQ(emulated_count("cuLaunchKernel"), 1U);
    EXPECT_EQ(emulated_count("copy"), 0U);
    EXPECT_EQ(emulated_count("host_wait"), 0U);
    EXPECT_EQ(emulated_count("cuMemAllocFromPoolAsync"), 1U);
  }
  return end_gpu_rank();
}

TEST_P(RankOrder, takes_one_kernel_and_no_wait_of_the_host) { run("rank_order_costs"); }

// ---------------------------------------------------------------- without kernels

CROSSRANK_RANK_SCENARIO(rank_order_through_host_memory) {
  auto const world = connect_gpu_rank();
  Comparison const comparison(world, Dtype::f32, ReduceOp::sum, 5'000);
  comparison.all_reduce();
  comparison.reduce();
  comparison.reduce_scatter();
  EXPECT_EQ(world.device_backend(), "nccl");
  EXPECT_EQ(emulated_count("cuLaunchKernel"), 0U);
  auto own_order = filled(world, 4);
  world.all_reduce(own_order);
  EXPECT_EQ(emulated_count("ncclAllReduce"), 1U);
  return end_gpu_rank();
}

TEST_P(RankOrder, goes_through_host_memory_when_one_rank_has_no_kernels) {
  run_without_kernels("rank_order_through_host_memory");
}

// ---------------------------------------------------------------- graphs

std::vector<int> all_of(Collective const& world) {
  auto ranks = all_ranks(world.world_size());
  return ranks;
}

CROSSRANK_RANK_SCENARIO(rank_order_graph) {
  auto const world = connect_gpu_rank();
  auto const group = GroupCoordinator::create(world, {all_of(world)}, {.name = "tp", .device_communicator = true});
  {
    auto const scope = group.graph_capture();
    for (std::int64_t const count : {11, 9'000}) {
      auto const values = own_values(world, Dtype::f16, count);
      auto expected = values.clone();
      world.all_reduce(expected);
      auto tensor = Tensor::zeros({count}, Dtype::f16, default_device());
      auto lowest = Tensor::zeros({1}, Dtype::f64, default_device());
      current_stream(default_device()).synchronize();
      auto const graph = cuda::Graph::capture(scope.context().stream, [&] {
        group.device_group().all_reduce(tensor, ReduceOp::sum, ReduceOrder::rank);
        group.device_group().all_reduce(lowest, ReduceOp::min);
      });
      for (int replay = 0; replay < 2; ++replay) {
        tensor.copy_from(values);
        auto const nan = std::numeric_limits<double>::quiet_NaN();
        lowest.copy_from(Tensor::of<double>({world.rank() == 1 ? nan : 1.0}, {1}));
        graph.replay();
        EXPECT_EQ(bytes_of(tensor), bytes_of(expected));
        EXPECT_TRUE(std::isnan(lowest.to(Device::cpu()).item<double>()));
      }
    }
  }
  return end_gpu_rank();
}

TEST_P(RankOrder, is_a_part_of_a_graph_and_keeps_nan_there) { run("rank_order_graph"); }

CROSSRANK_RANK_SCENARIO(rank_order_graph_without_kernels) {
  auto const world = connect_gpu_rank();
  auto const group = GroupCoordinator::create(world, {all_of(world)}, {.name = "tp", .device_communicator = true});
  {
    auto const scope = group.graph_capture();
    auto tensor = filled(world, 4);
    reset_emulated_counts();
    auto const graph = cuda::Graph::capture(scope.context().stream, [&] {
      EXPECT_THROW(group.device_group().all_reduce(tensor, ReduceOp::sum, ReduceOrder::rank), UsageError);
      group.device_group().all_reduce(tensor, ReduceOp::max);  // a graph cannot go through host memory
    });
    EXPECT_EQ(emulated_count("ncclAllReduce"), 1U);
    graph.replay();
    EXPECT_EQ(values(tensor), std::vector<float>(4, static_cast<float>(world.world_size())));
  }
  return end_gpu_rank();
}

TEST_P(RankOrder, cannot_be_captured_when_one_rank_has_no_kernels) {
  run_without_kernels("rank_order_graph_without_kernels");
}

// ---------------------------------------------------------------- errors

CROSSRANK_RANK_SCENARIO(rank_order_on_one_rank) {
  auto const world = connect_gpu_rank();
  auto on_cpu = Tensor::of<float>({1}, {1});
  world.all_reduce(on_cpu, ReduceOp::sum, world.rank() == 0 ? ReduceOrder::rank : ReduceOrder::any);
  EXPECT_EQ(on_cpu.item<float>(), static_cast<float>(world.world_size()));
  auto tensor = filled(world, 4);
  world.all_reduce(tensor);
  EXPECT_THROW(
      {
        world.all_reduce(tensor, ReduceOp::sum, world.rank() == 0 ? ReduceOrder::rank : ReduceOrder::any);
        current_stream(default_device()).synchronize();
      },
      MismatchError);
  return end_gpu_rank();
}

TEST_P(RankOrder, must_be_the_same_on_all_ranks_on_gpus_only) { run("rank_order_on_one_rank"); }

CROSSRANK_RANK_SCENARIO(rank_order_launch_fails) {
  auto const world = connect_gpu_rank();
  auto tensor = filled(world, 4);
  world.all_reduce(tensor);
  current_stream(default_device()).synchronize();
  if (world.rank() == 0) fail_call("cuLaunchKernel", 1, 801);
  try {
    world.all_reduce(tensor, ReduceOp::sum, ReduceOrder::rank);
    current_stream(default_device()).synchronize();
    world.all_reduce(tensor);
    current_stream(default_device()).synchronize();
    ADD_FAILURE() << "no error on rank " << world.rank();
  } catch (BackendError const&) {
    EXPECT_EQ(world.rank(), 0);
  } catch (PeerLostError const& e) {
    EXPECT_THAT(e.failed_ranks(), testing::ElementsAre(0));
  }
  return end_gpu_rank();
}

TEST_P(RankOrder, fails_on_all_ranks_when_a_launch_fails_on_one) { run("rank_order_launch_fails"); }

INSTANTIATE_TEST_SUITE_P(Ranks, RankOrder, testing::Values(2, 3, 4));

TEST(RankOrderOfOneRank, has_the_bits_of_the_cpu) { expect_job_ok(1, "rank_order_of_all_dtypes"); }

}  // namespace
}  // namespace crossrank::test
