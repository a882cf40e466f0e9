#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "tests/collectives/device/device_cases.hpp"
#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/support/message_ranks.hpp"

/// Ranks that exchange packets, with emulated GPUs: through host memory, and with NCCL. The ranks are threads on two
/// hosts, with or without shared memory between those of a host.
namespace crossrank::test::network_conformance_test {
namespace {

struct Parameter {
  ConformanceParameter one{};
  bool node_memory = false;
};

std::string name_of(testing::TestParamInfo<Parameter> const& info) { return parameter_name(info.param.one); }

std::vector<Parameter> on(bool node_memory, std::vector<ConformanceParameter> const& cases) {
  std::vector<Parameter> all;
  for (auto const& one : cases) all.push_back({one, node_memory});
  return all;
}

class NetworkStagedConformance : public testing::TestWithParam<Parameter> {};

TEST_P(NetworkStagedConformance, holds) {
  ::setenv("CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA, 1);
  auto const& parameter = GetParam();
  run_message_ranks(parameter.one.ranks,
                    [&](Collective const& world, MemoryHub&) {
                      run_on_gpu(parameter.one.test, {world, {}}, "staged", default_device());
                    },
                    {.node_memory = parameter.node_memory});
}

INSTANTIATE_TEST_SUITE_P(Messages, NetworkStagedConformance,
                         testing::ValuesIn(on(false, device_parameters({3}, OnDevices::staged))), name_of);
INSTANTIATE_TEST_SUITE_P(Composite, NetworkStagedConformance,
                         testing::ValuesIn(on(true, device_parameters({3}, OnDevices::staged))), name_of);

/// Arguments: the case, and "composite" for shared memory between the ranks of a host.
CROSSRANK_RANK_SCENARIO(nccl_network_conformance) {
  auto const test = find_conformance_case(self.arguments.at(0));
  run_message_ranks(3,
                    [&](Collective const& joined, MemoryHub&) {
                      auto const world = make_collective(joined.transport(), joined.timeout_policy(), level_of(test));
                      run_on_gpu(test, {world, {}}, "nccl", Device::cuda(world.rank()));
                    },
                    {.node_memory = self.arguments.at(1) == "composite"});
  return end_gpu_rank();
}

class NetworkNcclConformance : public testing::TestWithParam<Parameter> {};

TEST_P(NetworkNcclConformance, holds) {
  auto const& [one, node_memory] = GetParam();
  auto options = gpu_ranks();
  options.arguments = {std::string(one.test.name), node_memory ? "composite" : "messages"};
  expect_job_ok(1, "nccl_network_conformance", options);
}

INSTANTIATE_TEST_SUITE_P(Messages, NetworkNcclConformance, testing::ValuesIn(on(false, parameters_of_threads({3}))),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Composite, NetworkNcclConformance, testing::ValuesIn(on(true, parameters_of_threads({3}))),
                         name_of);

}  // namespace
}  // namespace crossrank::test::network_conformance_test
