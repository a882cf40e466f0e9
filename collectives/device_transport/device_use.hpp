#pragma once
#include <array>
#include <cstdint>
#include <span>

#include <crossrank/device.hpp>
#include <crossrank/spi/transport.hpp>

namespace crossrank::device {

/// The device of a rank's tensors in a group, as sent to the other ranks.
struct DeviceUse {
  std::array<char, 64> identity{};  ///< of the device, the same in all processes; empty where it has none
  std::int32_t index = 0;           ///< in that process
  std::int32_t default_index = 0;   ///< of its `default_device()`
  std::uint64_t is_default = 0;     ///< 1: the tensors are on `default_device()`
};

/// Describes the use of a device by this rank. A device that cannot be opened gets no identity.
[[nodiscard]] DeviceUse device_use(Device device) noexcept;

/// Logs a warning where this rank uses the device of another rank, and not its own. `uses` holds those of all ranks.
void warn_of_borrowed_device(std::span<DeviceUse const> uses, spi::Transport const& transport);

}  // namespace crossrank::device
