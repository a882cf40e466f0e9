#include "tests/collectives/device/device_cases.hpp"

#include <gtest/gtest.h>

#include <crossrank/tensor.hpp>

#include "tests/collectives/conformance/case_device.hpp"

namespace crossrank::test {

std::vector<ConformanceParameter> device_parameters(std::vector<int> const& sizes, OnDevices least) {
  auto all = conformance_parameters(sizes);
  std::erase_if(all, [least](ConformanceParameter const& one) {
    auto const on = one.test.on_devices;
    return on == OnDevices::no || (on == OnDevices::staged && least == OnDevices::yes);
  });
  return all;
}

CheckLevel level_of(ConformanceCase const& test) {
  return test.on_devices == OnDevices::compared ? CheckLevel::collective : CheckLevel::local;
}

std::vector<ConformanceParameter> parameters_of_threads(std::vector<int> const& sizes) {
  auto all = device_parameters(sizes, OnDevices::yes);
  std::erase_if(all, [](ConformanceParameter const& one) { return one.test.name == "dictionaries_arrive_in_order"; });
  return all;
}

void run_on_gpu(ConformanceCase const& test, ConformanceRank const& rank, std::string_view backend, Device gpu) {
  CaseDevice const device(gpu);
  // The group's first call on a GPU waits for all ranks. Cases in which a rank makes no call need it before.
  auto first = Tensor::zeros({1}, Dtype::f32, gpu);
  rank.world.all_reduce(first);
  ASSERT_EQ(rank.world.device_backend(), backend);
  run_conformance_case(test, rank);
}

}  // namespace crossrank::test
