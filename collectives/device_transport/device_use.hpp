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
  std::uint32_t is_default = 0;     ///< 1: the tensors are on `default_device()`
  std::int32_t process = 0;         ///< id of the process
};

/// Describes the use of a device by this rank. A device that cannot be opened gets no identity.
[[nodiscard]] DeviceUse device_use(Device device) noexcept;

/// `UsageError`, the same on all ranks, where a rank uses the device of a rank of another process and not its own.
/// Ranks that are threads have no device of their own unless they name it. `uses` holds those of all ranks.
void refuse_borrowed_device(std::span<DeviceUse const> uses, spi::Transport const& transport);

}  // namespace crossrank::device
