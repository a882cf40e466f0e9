#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <crossrank/tensor.hpp>

namespace crossrank::test {

inline constexpr std::int64_t mebi = 1 << 20;

/// Sets all bytes of a tensor.
inline Tensor filled(Tensor tensor, int value) {
  auto const bytes = tensor.mutable_bytes();
  std::memset(bytes.data(), value, bytes.size());
  return tensor;
}

/// Returns whether all bytes of a tensor have the value.
inline bool all_bytes_are(Tensor const& tensor, int value) {
  auto const bytes = tensor.bytes();
  return std::all_of(bytes.begin(), bytes.end(), [&](std::byte b) { return b == static_cast<std::byte>(value); });
}

}  // namespace crossrank::test
