#pragma once
#include <cstdint>
#include <string>

#include <crossrank/export.hpp>

namespace crossrank {

/// The place of a tensor's bytes.
struct Device {
  /// The kinds of memory.
  enum class Kind : std::uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;  ///< CPU or GPU
  int index = 0;          ///< number of the device among those of its kind
  /// Returns whether both are the same device.
  bool operator==(Device const&) const = default;
};

/// Returns "cpu" or "cuda:0". Local, free.
[[nodiscard]] CROSSRANK_EXPORT std::string to_string(Device device);

}  // namespace crossrank
