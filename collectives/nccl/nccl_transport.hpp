#pragma once
#include <crossrank/spi/device_transport.hpp>

namespace crossrank::nccl {

/// Returns the factory of NCCL's transports. Loads nothing.
[[nodiscard]] spi::DeviceTransportFactory& transport_factory() noexcept;

}  // namespace crossrank::nccl
