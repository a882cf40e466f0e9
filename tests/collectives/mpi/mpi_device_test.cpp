#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/crossrank.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/core/as_size.hpp"
#include "tests/collectives/coordinator/group_suite.hpp"
#include "tests/collectives/coordinator/group_values.hpp"
#include "tests/collectives/device/device_cases.hpp"
#include "tests/collectives/device/gpu_tensors.hpp"
#include "tests/support/emulated_driver.hpp"

/// Run by mpirun: every rank has an emulated GPU of its own. CROSSRANK_TEST_BACKEND chooses the backend, and
/// CROSSRANK_TEST_DEVICE_BACKEND how collectives on GPU tensors go.
namespace crossrank::test::mpi_device_test {
namespace {

std::string variable(char const* name) {
  auto const* const text = std::getenv(name);
  return text == nullptr ? std::string() : text;
}

bool has_nccl() { return variable("CROSSRANK_TEST_DEVICE_BACKEND") == "nccl"; }

/// Joins a job of all ranks, which have emulated libraries. mpirun does not pass these variables on to other hosts.
Collective join(ConnectOptions const& options) {
  ::setenv("CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA, 1);
  ::setenv("CROSSRANK_NCCL_LIBRARY", has_nccl() ? CROSSRANK_TEST_NCCL : "/nowhere/libnccl.so.2", 1);
  ::setenv("EMULATED_GPU_COUNT", "4", 1);
  return connect(options);
}

ConnectOptions options_of(std::string job_id) {
  return {.backend = variable("CROSSRANK_TEST_BACKEND"),
          .timeout = std::chrono::minutes(5),
          .connect_timeout = std::chrono::minutes(5),
          .job_id = std::move(job_id),
          .arena_cap = std::uint64_t{64} << 20};
}

int launched_ranks() {
  auto const ranks = variable("OMPI_COMM_WORLD_SIZE");
  return ranks.empty() ? 1 : std::stoi(ranks);
}

/// A case that ends its group may leave a failure of GPU work that no call has reported. The next wait of this process
/// throws it.
void take_failures_of_gpu_work() {
  for (bool is_clean = false; !is_clean;) {
    try {
      current_stream(default_device()).synchronize();
      is_clean = true;
    } catch (PeerLostError const&) {
    }
  }
}

class MpiDeviceConformance : public testing::TestWithParam<ConformanceParameter> {};

TEST_P(MpiDeviceConformance, holds) {
  auto options = options_of(std::string(GetParam().test.name));
  if (has_nccl()) options.check = level_of(GetParam().test);
  run_on_gpu(GetParam().test, {join(options), options}, has_nccl() ? "nccl" : "staged", default_device());
  take_failures_of_gpu_work();
  EXPECT_EQ(reports(), 0U) << "misuses of the driver";
}

INSTANTIATE_TEST_SUITE_P(Case, MpiDeviceConformance,
                         testing::ValuesIn(device_parameters({launched_ranks()},
                                                             has_nccl() ? OnDevices::yes : OnDevices::staged)),
                         [](auto const& one) { return parameter_name(one.param); });

class MpiDeviceGroup : public testing::TestWithParam<GroupParameter> {};

TEST_P(MpiDeviceGroup, holds) {
  auto world = join(options_of("group_" + std::string(GetParam().test.name)));
  {
    CaseDevice const device(default_device());
    GetParam().test.body(world);
    auto const group = whole(world);
    EXPECT_EQ(group.device_group().device_backend(), variable("CROSSRANK_TEST_DEVICE_BACKEND"));
  }
  world.close();
  EXPECT_EQ(reports(), 0U) << "misuses of the driver";
}

INSTANTIATE_TEST_SUITE_P(Case, MpiDeviceGroup, testing::ValuesIn(group_device_parameters({launched_ranks()})),
                         [](auto const& one) { return group_parameter_name(one.param); });

/// Rank 0 gets the state of each rank on its own GPU, from its host and from the other one.
TEST(MpiDeviceGather, brings_the_tensors_of_all_gpus) {
  auto world = join(options_of("gather"));
  auto const gpu = default_device();
  auto const count = [](int rank) { return std::int64_t{100'000} + rank; };
  StateDict weights;
  weights.insert_or_assign("on_gpu", filled(world, count(world.rank()), gpu));
  weights.insert_or_assign("on_cpu", filled(world, 5, Device::cpu()));
  auto gathered = get_configs_parallel({.config = world.rank(), .weights = weights}, world, {.to = gpu});
  int received = 0;
  for (auto const& [rank, state] : gathered) {
    EXPECT_EQ(rank, received);
    EXPECT_EQ(state.config, rank);
    auto const value = static_cast<float>(rank + 1);
    EXPECT_EQ(state.weights.at("on_gpu").device(), gpu);
    EXPECT_EQ(values(state.weights.at("on_gpu")), std::vector<float>(as_size(count(rank)), value));
    EXPECT_EQ(values(state.weights.at("on_cpu")), std::vector<float>(5, value));
    ++received;
  }
  gathered.close();
  EXPECT_EQ(received, world.rank() == 0 ? world.world_size() : 0);
  world.close();
  EXPECT_EQ(reports(), 0U) << "misuses of the driver";
}

/// Each rank exchanges tensors with another rank of its host, whose process opens the memory of its GPU.
TEST(MpiDeviceMessages, stay_on_the_gpus_of_a_host_with_shared_memory) {
  constexpr int rounds = 10;
  auto world = join(options_of("messages"));
  auto const gpu = default_device();
  auto const here = world.transport()->node_ranks();
  int const partner = here.front() == world.rank() ? here.back() : here.front();
  auto const sent = filled(world, 50'000, gpu);
  auto got = filled(world, 50'000, gpu);
  auto const exchange = [&] { world.sendrecv(got, sent, {.dst = partner, .src = partner}); };
  bool const has_partner = here.size() == 2;
  if (has_partner) exchange();
  current_stream(gpu).synchronize();
  world.barrier();
  reset_calls();
  for (int i = 0; i < rounds && has_partner; ++i) exchange();
  if (has_partner) {
    bool const stay = variable("CROSSRANK_TEST_BACKEND") == "composite";
    EXPECT_EQ(calls("cuMemcpyDtoHAsync_v2") + calls("cuMemcpyHtoDAsync_v2"), stay ? 0U : 2U * rounds);
    EXPECT_EQ(values(got), std::vector<float>(50'000, static_cast<float>(partner + 1)));
  }
  EXPECT_TRUE(has_partner || world.world_size() != 4) << "two ranks on each of two hosts";
  world.close();
  EXPECT_EQ(reports(), 0U) << "misuses of the driver";
}

}  // namespace
}  // namespace crossrank::test::mpi_device_test
