#pragma once
#include <string_view>
#include <vector>

#include <crossrank/device.hpp>

#include "tests/collectives/conformance/conformance.hpp"

/// The conformance cases that are about tensors, with tensors on GPUs.
namespace crossrank::test {

/// Combines the cases that hold on GPUs with each number of ranks. `least` is `OnDevices::yes` for device transports,
/// and `OnDevices::staged` where collectives go through host memory.
[[nodiscard]] std::vector<ConformanceParameter> device_parameters(std::vector<int> const& sizes, OnDevices least);

/// As `device_parameters` of a device transport, for ranks that are threads with a GPU each. A dictionary would arrive
/// on the GPU of the process.
[[nodiscard]] std::vector<ConformanceParameter> parameters_of_threads(std::vector<int> const& sizes);

/// Returns the check level with which a case holds on a device transport.
[[nodiscard]] CheckLevel level_of(ConformanceCase const& test);

/// Runs a case whose tensors are on `gpu`, and expects that collectives go through `backend`.
void run_on_gpu(ConformanceCase const& test, ConformanceRank const& rank, std::string_view backend, Device gpu);

}  // namespace crossrank::test
