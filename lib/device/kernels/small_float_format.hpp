#pragma once
#include <bit>
#include <cstdint>

#include <crossrank/tensor/dtype.hpp>

/// The codes of small floating-point formats, one at a time. The functions also compile for GPUs.
namespace crossrank {

/// Result of encoding a number beyond the largest of the format.
enum class Overflow : std::uint8_t {
  infinity,  ///< infinity, or NaN in a format without it, or the largest number in a format without both, as torch
  saturate,  ///< the largest number, also for infinities, as quantizers expect
};

namespace kernels {

/// Codes of a format that are not numbers.
enum class SpecialValues : std::uint8_t {
  ieee,    ///< the highest exponent: infinity and NaN
  finite,  ///< NaN is the highest code of each sign; no infinity
  fnuz,    ///< NaN is the code of minus zero; no infinity
  none,    ///< every code is a number
};

inline constexpr std::uint32_t float_infinity = 0x7f80'0000U;
inline constexpr std::uint32_t float_quiet = 0x0040'0000U;
inline constexpr std::uint32_t e8m0_nan = 0xff;

struct Format {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  SpecialValues special_values;

  [[nodiscard]] constexpr std::uint32_t sign() const { return 1U << (exponent_bits + mantissa_bits); }
  [[nodiscard]] constexpr std::uint32_t infinity() const { return ((1U << exponent_bits) - 1U) << mantissa_bits; }
  [[nodiscard]] constexpr std::uint32_t largest() const {
    if (special_values == SpecialValues::ieee) return infinity() - 1U;
    return special_values == SpecialValues::finite ? sign() - 2U : sign() - 1U;
  }
  [[nodiscard]] constexpr bool is_nan(std::uint32_t code) const {
    if (special_values == SpecialValues::fnuz) return code == sign();
    auto const magnitude = code & (sign() - 1U);
    if (special_values == SpecialValues::finite) return magnitude == sign() - 1U;
    return special_values == SpecialValues::ieee && magnitude > infinity();
  }
};

/// Returns whether a dtype has a `Format`. F8_E8M0 has functions of its own.
constexpr bool has_format(Dtype dtype) {
  switch (dtype) {
    case Dtype::f16:
    case Dtype::bf16:
    case Dtype::f8_e5m2:
    case Dtype::f8_e4m3:
    case Dtype::f8_e5m2fnuz:
    case Dtype::f8_e4m3fnuz:
    case Dtype::f6_e2m3:
    case Dtype::f6_e3m2:
    case Dtype::f4: return true;
    default: return false;
  }
}

/// Returns the format of a dtype.
template <Dtype dtype>
requires(has_format(dtype)) constexpr Format format_of() {
  if constexpr (dtype == Dtype::f16) return {5, 10, 15, SpecialValues::ieee};
  if constexpr (dtype == Dtype::bf16) return {8, 7, 127, SpecialValues::ieee};
  if constexpr (dtype == Dtype::f8_e5m2) return {5, 2, 15, SpecialValues::ieee};
  if constexpr (dtype == Dtype::f8_e4m3) return {4, 3, 7, SpecialValues::finite};
  if constexpr (dtype == Dtype::f8_e5m2fnuz) return {5, 2, 16, SpecialValues::fnuz};
  if constexpr (dtype == Dtype::f8_e4m3fnuz) return {4, 3, 8, SpecialValues::fnuz};
  if constexpr (dtype == Dtype::f6_e2m3) return {2, 3, 1, SpecialValues::none};
  if constexpr (dtype == Dtype::f6_e3m2) return {3, 2, 3, SpecialValues::none};
  return {2, 1, 1, SpecialValues::none};
}

/// Returns 2^`exponent`, which must be a normal float.
constexpr float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23U);
}

/// Returns a quiet NaN with the payload of `code` in its upper bits.
constexpr float nan_of_code(Format format, std::uint32_t code) {
  auto const payload = code & ((1U << format.mantissa_bits) - 1U);
  auto const sign = (code & format.sign()) != 0 ? 0x8000'0000U : 0U;
  return std::bit_cast<float>(sign | float_infinity | float_quiet |
                              (payload << static_cast<unsigned>(23 - format.mantissa_bits)));
}

/// Returns the number of a code, exactly.
constexpr float decode(Format format, std::uint32_t code) {
  code &= format.sign() * 2U - 1U;
  if (format.is_nan(code)) return nan_of_code(format, code);
  auto const sign = (code & format.sign()) != 0 ? -1.0F : 1.0F;
  auto const magnitude = code & (format.sign() - 1U);
  if (format.special_values == SpecialValues::ieee && magnitude == format.infinity()) {
    return sign * std::bit_cast<float>(std::uint32_t{float_infinity});
  }
  auto const exponent = static_cast<int>(magnitude >> static_cast<unsigned>(format.mantissa_bits));
  auto const mantissa = magnitude & ((1U << format.mantissa_bits) - 1U);
  auto const unit = power_of_two((exponent > 1 ? exponent : 1) - format.bias - format.mantissa_bits);
  auto const hidden = exponent != 0 ? 1U << format.mantissa_bits : 0U;
  return sign * static_cast<float>(hidden | mantissa) * unit;
}

constexpr std::uint32_t encode_nan(Format format, std::uint32_t bits, std::uint32_t sign) {
  switch (format.special_values) {
    case SpecialValues::fnuz: return format.sign();
    case SpecialValues::none: return format.largest();
    case SpecialValues::finite: return sign | (format.sign() - 1U);
    case SpecialValues::ieee: break;
  }
  if (format.mantissa_bits == 2) return sign | (format.sign() - 1U);  // as torch
  auto const shift = static_cast<unsigned>(23 - format.mantissa_bits);
  return sign | format.infinity() | (((bits | float_quiet) & 0x7f'ffffU) >> shift);
}

constexpr std::uint32_t encode_overflow(Format format, std::uint32_t sign, Overflow overflow) {
  if (overflow == Overflow::saturate || format.special_values == SpecialValues::none) return sign | format.largest();
  if (format.special_values == SpecialValues::ieee) return sign | format.infinity();
  return format.special_values == SpecialValues::fnuz ? format.sign() : sign | (format.sign() - 1U);
}

/// Returns the code nearest to a number; of two, the even one. For formats whose smallest number is above the subnormal
/// floats, so not for BF16.
constexpr std::uint32_t encode(Format format, float value, Overflow overflow) {
  auto const bits = std::bit_cast<std::uint32_t>(value);
  auto const sign = (bits >> 31U) * format.sign();
  auto const magnitude = bits & 0x7fff'ffffU;
  if (magnitude > float_infinity) return encode_nan(format, bits, sign);
  if (magnitude == float_infinity) return encode_overflow(format, sign, overflow);
  auto const zero = format.special_values == SpecialValues::fnuz ? 0U : sign;
  auto const exponent = static_cast<int>(magnitude >> 23U) - 127;
  auto const least = 1 - format.bias;
  auto const shift = static_cast<unsigned>(23 - format.mantissa_bits + (least > exponent ? least - exponent : 0));
  if (shift > 25U) return zero;  // less than half of the smallest number
  auto const significand = 0x80'0000U | (magnitude & 0x7f'ffffU);
  auto steps = significand >> shift;
  auto const rest = significand & ((1U << shift) - 1U);
  auto const half = 1U << (shift - 1U);
  if (rest > half || (rest == half && (steps & 1U) != 0)) ++steps;
  // A carry out of the mantissa increments the exponent.
  auto const above_least = static_cast<std::uint32_t>(exponent > least ? exponent - least : 0);
  auto const code = (above_least << format.mantissa_bits) + steps;
  if (code > format.largest()) return encode_overflow(format, sign, overflow);
  return code == 0 ? zero : sign | code;
}

constexpr float decode_e8m0(std::uint32_t code) {
  if (code == e8m0_nan) return std::bit_cast<float>(float_infinity | float_quiet);
  // 2^-127 is a subnormal float
  return code == 0 ? std::bit_cast<float>(0x40'0000U) : std::bit_cast<float>(code << 23U);
}

constexpr std::uint32_t encode_e8m0(float value, Overflow overflow) {
  auto const bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fff'ffffU) > float_infinity || bits > 0x8000'0000U) return e8m0_nan;
  auto const magnitude = bits & 0x7fff'ffffU;
  auto const exponent = magnitude >> 23U;
  auto const mantissa = magnitude & 0x7f'ffffU;
  // From 1.5 on the next power is as near or nearer. Below the smallest normal, the choice is between 2^-127 and
  // 2^-126.
  auto const code = exponent + (mantissa >= (exponent == 0 ? 0x60'0000U : 0x40'0000U) ? 1U : 0U);
  if (code < e8m0_nan) return code;
  return overflow == Overflow::saturate ? e8m0_nan - 1U : e8m0_nan;
}

}  // namespace kernels

/// Converts exactly.
[[nodiscard]] constexpr float bf16_to_float(std::uint16_t code) noexcept {
  return std::bit_cast<float>(std::uint32_t{code} << 16U);
}

/// Converts to the nearest, ties to even. A number beyond the largest becomes infinity.
[[nodiscard]] constexpr std::uint16_t float_to_bf16(float value) noexcept {
  auto const bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fff'ffffU) > 0x7f80'0000U) return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U);
}

}  // namespace crossrank
