#include <crossrank/spi/device_provider.hpp>

#include <crossrank/error.hpp>

#include "lib/device/cuda/cuda_provider.hpp"

namespace crossrank::spi {

DeviceProvider& device_provider(Device::Kind kind) {
  switch (kind) {
    case Device::Kind::cpu: break;
    case Device::Kind::cuda: return cuda::cuda_provider();
  }
  throw UsageError({.operation = "device_provider", .message = "the CPU has no provider", .expected = "a kind of GPU"});
}

}  // namespace crossrank::spi
