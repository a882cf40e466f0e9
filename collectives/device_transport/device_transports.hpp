#pragma once
#include <memory>
#include <vector>

#include <crossrank/device.hpp>
#include <crossrank/spi/device_transport.hpp>

namespace crossrank::device {

/// Returns the factories that serve a kind of device, those that a rank prefers first. Loads nothing.
[[nodiscard]] std::vector<std::shared_ptr<spi::DeviceTransportFactory>> device_transports(Device::Kind kind);

}  // namespace crossrank::device
