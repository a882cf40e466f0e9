#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "tests/collectives/device/device_cases.hpp"
#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/collectives/device/thread_transport.hpp"
#include "tests/support/spawn_rank.hpp"
#include "tests/support/thread_ranks.hpp"

/// Ranks of one host with emulated GPUs: through host memory, with NCCL, and with a device transport of another
/// library.
namespace crossrank::test {
namespace {

class StagedConformance : public testing::TestWithParam<ConformanceParameter> {};

TEST_P(StagedConformance, holds) {
  ::setenv("CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA, 1);
  ThreadRankOptions const options{.job_id = random_job_id()};
  auto const& parameter = GetParam();
  run_thread_ranks(
      parameter.ranks,
      [&](Collective const& world) {
        run_on_gpu(parameter.test, {world, thread_options(world.rank(), world.world_size(), options)}, "staged",
                   default_device());
      },
      options);
}

INSTANTIATE_TEST_SUITE_P(Case, StagedConformance, testing::ValuesIn(device_parameters({1, 3}, OnDevices::staged)),
                         [](auto const& one) { return parameter_name(one.param); });

CROSSRANK_RANK_SCENARIO(nccl_conformance) {
  auto const test = find_conformance_case(self.arguments.at(0));
  ConnectOptions const options{.backend = "shm",
                               .timeout = std::chrono::minutes(2),
                               .job_id = std::getenv("CROSSRANK_JOB_ID"),
                               .check = level_of(test)};
  run_on_gpu(test, {connect(options), options}, "nccl", default_device());
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
  auto const test = find_conformance_case(self.arguments.at(0));
  ThreadRankOptions const options{.job_id = random_job_id()};
  run_thread_ranks(
      3,
      [&](Collective const& world) {
        auto const group = make_collective(world.transport(), world.timeout_policy(), level_of(test));
        run_on_gpu(test, {group, thread_options(world.rank(), 3, options)}, thread_transport_name,
                   Device::cuda(world.rank()));
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

INSTANTIATE_TEST_SUITE_P(Case, ThreadTransportConformance, testing::ValuesIn(parameters_of_threads({3})),
                         [](auto const& one) { return parameter_name(one.param); });

}  // namespace
}  // namespace crossrank::test
