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

/// Returns the error that `call` throws. Fails the test if it throws another exception or none.
template <class Kind, class Call>
ErrorInfo error_of(Call call) {
  try {
    call();
  } catch (Kind const& e) {
    auto info = e.info();
    info.group_usable = e.group_usable();
    return info;
  } catch (std::exception const& e) {
    ADD_FAILURE() << "unexpected exception: " << e.what();
    return {};
  }
  ADD_FAILURE() << "no error";
  return {};
}

}  // namespace crossrank::test
