#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include <crossrank/device.hpp>

namespace crossrank::device {

/// The kinds of devices, each at the index of its number.
inline constexpr std::array all_kinds{Device::Kind::cpu, Device::Kind::cuda};

/// Returns the kind with this number, which another process has written; nothing if there is no such kind.
[[nodiscard]] constexpr std::optional<Device::Kind> kind_of(std::uint64_t number) noexcept {
  if (number >= all_kinds.size()) return {};
  return all_kinds[number];
}

}  // namespace crossrank::device
