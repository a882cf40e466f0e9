#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/collectives/conformance/case_device.hpp"
#include "tests/collectives/conformance/conformance.hpp"
#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/collectives/device/thread_transport.hpp"
#include "tests/support/spawn_rank.hpp"
#include "tests/support/thread_ranks.hpp"

/// The cases that are about tensors, with tensors on emulated GPUs: through host memory, with NCCL, and with a device
/// transport of another library.
namespace crossrank::test {
namespace {

std::vector<ConformanceParameter> device_parameters(std::vector<int> const& sizes, OnDevices least) {
  auto all = conformance_parameters(sizes);
  std::erase_if(all, [least](ConformanceParameter const& one) {
    auto const on = one.test.on_devices;
    return on == OnDevices::no || (on == OnDevices::staged && least == OnDevices::yes);
  });
  return all;
}

/// Runs a case whose tensors are on the rank's GPU. The group's first call on such tensors waits for all ranks, so that
/// it comes before the case.
void run_on_gpu(ConformanceCase const& test, ConformanceRank const& rank, std::string_view backend,
                Device gpu = default_device()) {
  CaseDevice const device(gpu);
  auto first = Tensor::zeros({1}, Dtype::f32, gpu);
  rank.world.all_reduce(first);
  ASSERT_EQ(rank.world.device_backend(), backend);
  run_conformance_case(test, rank);
}

class StagedConformance : public testing::TestWithParam<ConformanceParameter> {};

TEST_P(StagedConformance, holds) {
  ::setenv("CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA, 1);
  ThreadRankOptions const options{.job_id = random_job_id()};
  auto const& parameter = GetParam();
  run_thread_ranks(
      parameter.ranks,
      [&](Collective const& world) {
        run_on_gpu(parameter.test, {world, thread_options(world.rank(), world.world_size(), options)}, "staged");
      },
      options);
}

INSTANTIATE_TEST_SUITE_P(Case, StagedConformance, testing::ValuesIn(device_parameters({1, 3}, OnDevices::staged)),
                         [](auto const& one) { return parameter_name(one.param); });

CROSSRANK_RANK_SCENARIO(nccl_conformance) {
  ConnectOptions const options{
      .backend = "shm", .timeout = std::chrono::minutes(2), .job_id = std::getenv("CROSSRANK_JOB_ID")};
  run_on_gpu(find_conformance_case(self.arguments.at(0)), {connect(options), options}, "nccl");
  return end_gpu_rank();
}

class NcclConformance : public testing::TestWithParam<ConformanceParameter> {};

TEST_P(NcclConformance, holds) {
  auto options = gpu_ranks();
  options.arguments = {std::string(GetParam().test.name)};
  expect_job_ok(GetParam().ranks, "nccl_conformance", options);
}

INSTANTIATE_TEST_SUITE_P(Case, NcclConformance, testing::ValuesIn(device_parameters({3}, OnDevices::yes)),
                         [](auto const& one) { return parameter_name(one.param); });

CROSSRANK_RANK_SCENARIO(thread_transport_conformance) {
  add_thread_transport();
  ThreadRankOptions const options{.job_id = random_job_id()};
  run_thread_ranks(
      3,
      [&](Collective const& world) {
        run_on_gpu(find_conformance_case(self.arguments.at(0)), {world, thread_options(world.rank(), 3, options)},
                   thread_transport_name, Device::cuda(world.rank()));
      },
      options);
  return end_gpu_rank();
}

class ThreadTransportConformance : public testing::TestWithParam<ConformanceParameter> {};

TEST_P(ThreadTransportConformance, holds) {
  auto options = gpu_ranks();
  options.arguments = {std::string(GetParam().test.name)};
  options.launcher_variables = false;
  expect_job_ok(1, "thread_transport_conformance", options);
}

/// Dictionaries arrive on the GPU of the process. Here each rank has one of its own.
std::vector<ConformanceParameter> thread_transport_parameters() {
  auto all = device_parameters({3}, OnDevices::yes);
  std::erase_if(all, [](ConformanceParameter const& one) { return one.test.name == "dictionaries_arrive_in_order"; });
  return all;
}

INSTANTIATE_TEST_SUITE_P(Case, ThreadTransportConformance, testing::ValuesIn(thread_transport_parameters()),
                         [](auto const& one) { return parameter_name(one.param); });

}  // namespace
}  // namespace crossrank::test
