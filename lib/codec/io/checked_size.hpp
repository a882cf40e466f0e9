#pragma once
#include <cstdint>
#include <span>

#include <crossrank/tensor/dtype.hpp>

namespace crossrank::codec {

/// Result of checking the size of a tensor from a file or a peer.
enum class SizeStatus : std::uint8_t { fits, overflows, splits_a_byte };

/// Computes the size of a dense tensor in `bytes`. Checks every product, in the order of the dimensions. `Shape` counts
/// elements in a signed type, and refuses an overflow even if a length of 0 follows. A negative length overflows.
[[nodiscard]] constexpr SizeStatus checked_byte_size(std::span<std::int64_t const> shape, std::size_t bits_per_element,
                                                     std::uint64_t& bytes) noexcept {
  std::int64_t elements = 1;
  for (auto const length : shape) {
    if (length < 0 || __builtin_mul_overflow(elements, length, &elements)) return SizeStatus::overflows;
  }
  std::uint64_t bits = 0;
  if (__builtin_mul_overflow(elements, bits_per_element, &bits)) return SizeStatus::overflows;
  bytes = bits / 8;
  return bits % 8 == 0 ? SizeStatus::fits : SizeStatus::splits_a_byte;
}

}  // namespace crossrank::codec
