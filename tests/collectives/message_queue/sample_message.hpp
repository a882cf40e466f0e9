#pragma once
#include <cstddef>
#include <vector>

namespace crossrank::test {

using Bytes = std::vector<std::byte>;

/// Returns the bytes of a message, which differ for each seed.
inline Bytes sample(std::size_t size, unsigned seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 7 + seed * 31 + i / 251) & 0xff);
  return bytes;
}

}  // namespace crossrank::test
