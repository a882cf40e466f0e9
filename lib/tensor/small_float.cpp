#include "lib/tensor/small_float.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include <crossrank/error.hpp>

namespace crossrank {
namespace {

/// Codes of a format that are not numbers.
enum class Specials : std::uint8_t {
  ieee,    ///< the highest exponent: infinity and NaN
  finite,  ///< NaN is the highest code of each sign; no infinity
  fnuz,    ///< NaN is the code of minus zero; no infinity
  none,    ///< every code is a number
};

struct Format {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  Specials specials;

  [[nodiscard]] constexpr std::uint32_t sign() const { return 1U << (exponent_bits + mantissa_bits); }
  [[nodiscard]] constexpr std::uint32_t infinity() const { return ((1U << exponent_bits) - 1U) << mantissa_bits; }
  [[nodiscard]] constexpr std::uint32_t largest() const {
    if (specials == Specials::ieee) return infinity() - 1U;
    return specials == Specials::finite ? sign() - 2U : sign() - 1U;
  }
  [[nodiscard]] constexpr bool is_nan(std::uint32_t code) const {
    if (specials == Specials::fnuz) return code == sign();
    auto const magnitude = code & (sign() - 1U);
    if (specials == Specials::finite) return magnitude == sign() - 1U;
    return specials == Specials::ieee && magnitude > infinity();
  }
};

constexpr Format f16{5, 10, 15, Specials::ieee};
constexpr Format bf16{8, 7, 127, Specials::ieee};
constexpr Format e5m2{5, 2, 15, Specials::ieee};
constexpr Format e4m3{4, 3, 7, Specials::finite};
constexpr Format e5m2fnuz{5, 2, 16, Specials::fnuz};
constexpr Format e4m3fnuz{4, 3, 8, Specials::fnuz};
constexpr Format e2m3{2, 3, 1, Specials::none};
constexpr Format e3m2{3, 2, 3, Specials::none};
constexpr Format e2m1{2, 1, 1, Specials::none};

constexpr std::uint32_t float_infinity = 0x7f80'0000U;
constexpr std::uint32_t float_quiet = 0x0040'0000U;

/// Returns 2^`exponent`, which must be a normal float.
constexpr float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23U);
}

/// Returns a quiet NaN with the payload of `code` in its upper bits.
constexpr float wide_nan(Format format, std::uint32_t code) {
  auto const payload = code & ((1U << format.mantissa_bits) - 1U);
  auto const sign = (code & format.sign()) != 0 ? 0x8000'0000U : 0U;
  return std::bit_cast<float>(sign | float_infinity | float_quiet |
                              (payload << static_cast<unsigned>(23 - format.mantissa_bits)));
}

constexpr float decode(Format format, std::uint32_t code) {
  code &= format.sign() * 2U - 1U;
  if (format.is_nan(code)) return wide_nan(format, code);
  auto const sign = (code & format.sign()) != 0 ? -1.0F : 1.0F;
  auto const magnitude = code & (format.sign() - 1U);
  if (format.specials == Specials::ieee && magnitude == format.infinity()) {
    return sign * std::bit_cast<float>(float_infinity);
  }
  auto const exponent = static_cast<int>(magnitude >> static_cast<unsigned>(format.mantissa_bits));
  auto const mantissa = magnitude & ((1U << format.mantissa_bits) - 1U);
  auto const unit = power_of_two(std::max(exponent, 1) - format.bias - format.mantissa_bits);
  auto const hidden = exponent != 0 ? 1U << format.mantissa_bits : 0U;
  return sign * static_cast<float>(hidden | mantissa) * unit;
}

std::uint32_t encode_nan(Format format, std::uint32_t bits, std::uint32_t sign) {
  switch (format.specials) {
    case Specials::fnuz: return format.sign();
    case Specials::none: return format.largest();
    case Specials::finite: return sign | (format.sign() - 1U);
    case Specials::ieee: break;
  }
  if (format.mantissa_bits == 2) return sign | (format.sign() - 1U);  // as torch
  auto const shift = static_cast<unsigned>(23 - format.mantissa_bits);
  return sign | format.infinity() | (((bits | float_quiet) & 0x7f'ffffU) >> shift);
}

std::uint32_t encode_overflow(Format format, std::uint32_t sign, Overflow overflow) {
  if (overflow == Overflow::saturate || format.specials == Specials::none) return sign | format.largest();
  if (format.specials == Specials::ieee) return sign | format.infinity();
  return format.specials == Specials::fnuz ? format.sign() : sign | (format.sign() - 1U);
}

/// Encodes for formats whose smallest number is above the subnormal floats.
std::uint32_t encode(Format format, float value, Overflow overflow) {
  auto const bits = std::bit_cast<std::uint32_t>(value);
  auto const sign = (bits >> 31U) * format.sign();
  auto const magnitude = bits & 0x7fff'ffffU;
  if (magnitude > float_infinity) return encode_nan(format, bits, sign);
  if (magnitude == float_infinity) return encode_overflow(format, sign, overflow);
  auto const zero = format.specials == Specials::fnuz ? 0U : sign;
  auto const exponent = static_cast<int>(magnitude >> 23U) - 127;
  auto const least = 1 - format.bias;
  auto const shift = static_cast<unsigned>(23 - format.mantissa_bits + std::max(least - exponent, 0));
  if (shift > 25U) return zero;  // less than half of the smallest number
  auto const significand = 0x80'0000U | (magnitude & 0x7f'ffffU);
  auto steps = significand >> shift;
  auto const rest = significand & ((1U << shift) - 1U);
  auto const half = 1U << (shift - 1U);
  if (rest > half || (rest == half && (steps & 1U) != 0)) ++steps;
  // A carry out of the mantissa increments the exponent.
  auto const code = (static_cast<std::uint32_t>(std::max(exponent - least, 0)) << format.mantissa_bits) + steps;
  if (code > format.largest()) return encode_overflow(format, sign, overflow);
  return code == 0 ? zero : sign | code;
}

constexpr std::uint32_t e8m0_nan = 0xff;

constexpr float decode_e8m0(std::uint32_t code) {
  if (code == e8m0_nan) return std::bit_cast<float>(float_infinity | float_quiet);
  // 2^-127 is a subnormal float
  return code == 0 ? std::bit_cast<float>(0x40'0000U) : std::bit_cast<float>(code << 23U);
}

std::uint32_t encode_e8m0(float value, Overflow overflow) {
  auto const bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fff'ffffU) > float_infinity || bits > 0x8000'0000U) return e8m0_nan;
  auto const magnitude = bits & 0x7fff'ffffU;
  auto const exponent = magnitude >> 23U;
  auto const mantissa = magnitude & 0x7f'ffffU;
  // From 1.5 on the next power is as near or nearer. Below the smallest normal, the choice is between 2^-127 and
  // 2^-126.
  auto const code = exponent + (mantissa >= (exponent == 0 ? 0x60'0000U : 0x40'0000U) ? 1U : 0U);
  return code >= e8m0_nan ? (overflow == Overflow::saturate ? e8m0_nan - 1U : e8m0_nan) : code;
}

using Table = std::array<float, 256>;

template <class Decode>
constexpr Table make_table(Decode decode_one) {
  Table table{};
  for (std::uint32_t code = 0; code < 256; ++code) table[code] = decode_one(code);
  return table;
}

constexpr Table e5m2_table = make_table([](std::uint32_t code) { return decode(e5m2, code); });
constexpr Table e4m3_table = make_table([](std::uint32_t code) { return decode(e4m3, code); });
constexpr Table e5m2fnuz_table = make_table([](std::uint32_t code) { return decode(e5m2fnuz, code); });
constexpr Table e4m3fnuz_table = make_table([](std::uint32_t code) { return decode(e4m3fnuz, code); });
constexpr Table e8m0_table = make_table([](std::uint32_t code) { return decode_e8m0(code); });
constexpr Table e2m3_table = make_table([](std::uint32_t code) { return decode(e2m3, code); });
constexpr Table e3m2_table = make_table([](std::uint32_t code) { return decode(e3m2, code); });
constexpr Table e2m1_table = make_table([](std::uint32_t code) { return decode(e2m1, code); });

Table const* table_of(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::f8_e5m2: return &e5m2_table;
    case Dtype::f8_e4m3: return &e4m3_table;
    case Dtype::f8_e5m2fnuz: return &e5m2fnuz_table;
    case Dtype::f8_e4m3fnuz: return &e4m3fnuz_table;
    case Dtype::f8_e8m0: return &e8m0_table;
    case Dtype::f6_e2m3: return &e2m3_table;
    case Dtype::f6_e3m2: return &e3m2_table;
    case Dtype::f4: return &e2m1_table;
    default: return nullptr;
  }
}

[[noreturn]] void refuse(Dtype dtype) {
  throw UsageError({.operation = "convert",
                    .message = "not a small floating point format",
                    .expected = "F16, BF16, F8_E4M3, F8_E5M2, F8_E4M3FNUZ, F8_E5M2FNUZ, F8_E8M0, F6_E2M3, F6_E3M2, F4",
                    .got = std::string(name_of(dtype))});
}

void require_size(Dtype dtype, std::size_t numbers, std::size_t bytes) {
  if (!is_small_float(dtype)) refuse(dtype);
  auto const bits = bits_of(dtype);
  if (numbers <= SIZE_MAX / 16 && numbers * bits == bytes * 8) return;
  throw UsageError({.operation = "convert",
                    .message = "the number of codes is not the number of values",
                    .expected = std::to_string(numbers) + " of " + std::to_string(bits) + " bits",
                    .got = std::to_string(bytes) + " bytes"});
}

/// Returns code number `index` of a stream of codes of `bits` bits (at most 8), the first in the lowest bits.
std::uint32_t packed_code(std::span<std::byte const> codes, std::size_t index, std::size_t bits) {
  auto const first = index * bits;
  auto const byte = first / 8;
  auto window = std::to_integer<std::uint32_t>(codes[byte]);
  if (byte + 1 < codes.size()) window |= std::to_integer<std::uint32_t>(codes[byte + 1]) << 8U;
  return (window >> (first % 8)) & ((1U << bits) - 1U);
}

void put_packed_code(std::span<std::byte> codes, std::size_t index, std::size_t bits, std::uint32_t code) {
  auto const first = index * bits;
  auto const shifted = code << (first % 8);
  codes[first / 8] |= static_cast<std::byte>(shifted & 0xffU);
  if (shifted > 0xffU) codes[first / 8 + 1] |= static_cast<std::byte>(shifted >> 8U);
}

}  // namespace

bool is_small_float(Dtype dtype) noexcept {
  return dtype == Dtype::f16 || dtype == Dtype::bf16 || table_of(dtype) != nullptr;
}

float f16_to_float(std::uint16_t code) noexcept { return decode(f16, code); }

std::uint16_t float_to_f16(float value) noexcept {
  return static_cast<std::uint16_t>(encode(f16, value, Overflow::infinity));
}

float decode_small_float(Dtype dtype, std::uint16_t code) {
  if (dtype == Dtype::bf16) return bf16_to_float(code);
  if (dtype == Dtype::f16) return f16_to_float(code);
  auto const* const table = table_of(dtype);
  if (table == nullptr) refuse(dtype);
  return (*table)[code & ((1U << bits_of(dtype)) - 1U)];
}

std::uint16_t encode_small_float(Dtype dtype, float value, Overflow overflow) {
  auto const as = [&](Format format) { return static_cast<std::uint16_t>(encode(format, value, overflow)); };
  switch (dtype) {
    case Dtype::f16: return as(f16);
    case Dtype::bf16: {
      auto const code = float_to_bf16(value);
      bool const overflows = (code & 0x7fffU) == bf16.infinity() && overflow == Overflow::saturate;
      return overflows ? static_cast<std::uint16_t>(code - 1U) : code;
    }
    case Dtype::f8_e5m2: return as(e5m2);
    case Dtype::f8_e4m3: return as(e4m3);
    case Dtype::f8_e5m2fnuz: return as(e5m2fnuz);
    case Dtype::f8_e4m3fnuz: return as(e4m3fnuz);
    case Dtype::f8_e8m0: return static_cast<std::uint16_t>(encode_e8m0(value, overflow));
    case Dtype::f6_e2m3: return as(e2m3);
    case Dtype::f6_e3m2: return as(e3m2);
    case Dtype::f4: return as(e2m1);
    default: refuse(dtype);
  }
}

void decode_small_floats(Dtype dtype, std::span<std::byte const> codes, std::span<float> out) {
  require_size(dtype, out.size(), codes.size());
  if (auto const* const table = table_of(dtype); table != nullptr) {
    auto const bits = bits_of(dtype);
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = (*table)[bits == 8 ? std::to_integer<std::uint32_t>(codes[i]) : packed_code(codes, i, bits)];
    }
    return;
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t code{};
    std::memcpy(&code, codes.data() + i * sizeof code, sizeof code);
    out[i] = dtype == Dtype::bf16 ? bf16_to_float(code) : f16_to_float(code);
  }
}

void encode_small_floats(Dtype dtype, std::span<float const> values, std::span<std::byte> codes, Overflow overflow) {
  require_size(dtype, values.size(), codes.size());
  auto const bits = bits_of(dtype);
  if (bits < 8) std::fill(codes.begin(), codes.end(), std::byte{0});
  for (std::size_t i = 0; i < values.size(); ++i) {
    auto const code = encode_small_float(dtype, values[i], overflow);
    if (bits == 16) {
      std::memcpy(codes.data() + i * sizeof code, &code, sizeof code);
    } else if (bits == 8) {
      codes[i] = static_cast<std::byte>(code);
    } else {
      put_packed_code(codes, i, bits, code);
    }
  }
}

}  // namespace crossrank
