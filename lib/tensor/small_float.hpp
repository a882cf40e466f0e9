#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include <crossrank/dtype.hpp>

namespace crossrank {

/// What becomes of a number whose nearest code would lie beyond the largest.
enum class Overflow : std::uint8_t {
  infinity,  ///< the infinity of the format, NaN where it has none, the largest where it has neither: as torch does
  saturate,  ///< the largest, also for infinities: as quantizers want it
};

/// Whether `dtype` is one of the formats below: F16, BF16, the five F8, F6_E2M3, F6_E3M2, F4.
[[nodiscard]] bool is_small_float(Dtype dtype) noexcept;

/// The number that a code of a small format stands for: exact. Bits above those of the format are ignored.
///
/// F8_E4M3 has no infinities and NaN at 0x7f and 0xff (max 448); the FNUZ formats have one zero and NaN at 0x80 only;
/// F8_E8M0 is 2^(code - 127) with NaN at 0xff; F4 is E2M1 (max 6), it and the F6 have neither infinity nor NaN.
[[nodiscard]] float decode_small_float(Dtype dtype, std::uint16_t code);

/// The code nearest to a number, the even one of two. Signs of NaN and zero are kept where the format has them.
///
/// NaN becomes the format's: F16 and BF16 keep the upper bits of its payload as processors do, F8_E5M2 takes 0x7f, as
/// torch; a format without any (F4, F6) takes its largest number. F8_E8M0 takes NaN for a negative number, its least
/// code for zero, and the greater of two powers that are equally near.
[[nodiscard]] std::uint16_t encode_small_float(Dtype dtype, float value, Overflow overflow = Overflow::infinity);

/// Decodes `out.size()` numbers from `codes`, which holds exactly as many. F4: the first of two in the low half of the
/// byte; F6: four in three bytes, the first in the lowest bits. `UsageError` for another size or dtype.
void decode_small_floats(Dtype dtype, std::span<std::byte const> codes, std::span<float> out);

/// The inverse, in the same order.
void encode_small_floats(Dtype dtype, std::span<float const> values, std::span<std::byte> codes,
                         Overflow overflow = Overflow::infinity);

/// Exact.
[[nodiscard]] inline float bf16_to_float(std::uint16_t code) noexcept {
  return std::bit_cast<float>(std::uint32_t{code} << 16U);
}

/// Nearest, ties to even; beyond the largest is infinity.
[[nodiscard]] inline std::uint16_t float_to_bf16(float value) noexcept {
  auto const bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fff'ffffU) > 0x7f80'0000U) return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U);
}

/// Exact.
[[nodiscard]] float f16_to_float(std::uint16_t code) noexcept;
/// Nearest, ties to even; beyond the largest is infinity.
[[nodiscard]] std::uint16_t float_to_f16(float value) noexcept;

}  // namespace crossrank
