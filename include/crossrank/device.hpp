#pragma once
#include <cstdint>
#include <string>

#include <crossrank/export.hpp>

namespace crossrank {

/// Where the bytes of a tensor stand.
struct Device {
  enum class Kind : std::uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;  ///< number of the device among those of its kind
  bool operator==(Device const&) const = default;
};

/// "cpu", "cuda:0". Local, free.
[[nodiscard]] CROSSRANK_EXPORT std::string to_string(Device device);

}  // namespace crossrank
