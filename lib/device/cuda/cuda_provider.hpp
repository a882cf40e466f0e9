#pragma once
#include <crossrank/spi/device_provider.hpp>

namespace crossrank::cuda {

/// Returns the provider of CUDA devices. Loads nothing.
[[nodiscard]] spi::DeviceProvider& cuda_provider() noexcept;

}  // namespace crossrank::cuda
