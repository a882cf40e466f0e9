#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

namespace crossrank::test {

/// Zero, one, odd, around the payload of an arrival line (72), around a page, large.
inline constexpr std::array<std::size_t, 8> boundary_sizes{0, 1, 7, 72, 73, 4095, 4097, (std::size_t{1} << 20) + 3};

/// Returns bytes that depend on the sender and the message.
inline std::vector<std::byte> pattern(std::size_t bytes, int seed) {
  std::vector<std::byte> out(bytes);
  auto state = static_cast<std::uint32_t>(seed) * 2654435761U + 12345U;
  for (auto& byte : out) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24U);
  }
  return out;
}

}  // namespace crossrank::test
