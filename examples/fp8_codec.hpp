#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

/// The format E4M3: a sign, 4 bits of exponent with bias 7, 3 bits of mantissa, no infinities. NaN is 0x7f and 0xff.
namespace fp8 {

inline constexpr double largest = 448;

/// Returns the value of an E4M3 number, exactly.
inline double decode_e4m3(std::uint8_t bits) {
  int const exponent = (bits >> 3) & 15;
  int const mantissa = bits & 7;
  double magnitude = 0;
  if (exponent == 15 && mantissa == 7) {
    magnitude = std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, -9);
  } else {
    magnitude = std::ldexp(8 + mantissa, exponent - 10);
  }
  return std::copysign(magnitude, (bits & 0x80) != 0 ? -1.0 : 1.0);
}

/// Rounds to the nearest E4M3 number, ties to even. Values beyond the largest become the largest.
inline std::uint8_t encode_e4m3(double value) {
  auto const sign = static_cast<std::uint8_t>(std::signbit(value) ? 0x80 : 0);
  if (std::isnan(value)) return sign | 0x7f;
  auto const magnitude = std::min(std::abs(value), largest);
  // Below 2^-6 neighbours are equally far apart.
  int const exponent = magnitude == 0 ? -6 : std::max(std::ilogb(magnitude), -6);
  auto const steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
  // Rounding up to 16 steps carries into the exponent. Fewer than 8 steps are a number with exponent bits 0.
  return static_cast<std::uint8_t>(sign | (((exponent + 7) << 3) + steps - 8));
}

}  // namespace fp8
