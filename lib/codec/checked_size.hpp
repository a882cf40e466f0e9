#pragma once
#include <cstdint>
#include <span>

#include <crossrank/dtype.hpp>

namespace crossrank::codec {

/// What became of the size of a tensor that a file or a peer announced.
enum class SizeVerdict : std::uint8_t { fits, overflows, splits_a_byte };

/// Bytes of a dense tensor in `bytes`, every product checked, in the order of the dimensions.
[[nodiscard]] constexpr SizeVerdict announced_bytes(std::span<std::int64_t const> shape, std::size_t bits_per_element,
                                                    std::uint64_t& bytes) noexcept {
  std::uint64_t elements = 1;
  for (auto const length : shape) {
    if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(length), &elements)) return SizeVerdict::overflows;
  }
  std::uint64_t bits = 0;
  if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(bits_per_element), &bits))
    return SizeVerdict::overflows;
  bytes = bits / 8;
  return bits % 8 == 0 ? SizeVerdict::fits : SizeVerdict::splits_a_byte;
}

}  // namespace crossrank::codec
