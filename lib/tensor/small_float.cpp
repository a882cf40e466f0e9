#include "lib/tensor/small_float.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include <crossrank/error.hpp>

namespace crossrank {
namespace {

using kernels::decode;
using kernels::decode_e8m0;
using kernels::encode;
using kernels::encode_e8m0;
using kernels::format_of;

using Table = std::array<float, 256>;

template <class Decode>
constexpr Table make_table(Decode decode_one) {
  Table table{};
  for (std::uint32_t code = 0; code < 256; ++code) table[code] = decode_one(code);
  return table;
}

constexpr Table e5m2_table = make_table([](std::uint32_t code) { return decode(format_of<Dtype::f8_e5m2>(), code); });
constexpr Table e4m3_table = make_table([](std::uint32_t code) { return decode(format_of<Dtype::f8_e4m3>(), code); });
constexpr Table e5m2fnuz_table =
    make_table([](std::uint32_t code) { return decode(format_of<Dtype::f8_e5m2fnuz>(), code); });
constexpr Table e4m3fnuz_table =
    make_table([](std::uint32_t code) { return decode(format_of<Dtype::f8_e4m3fnuz>(), code); });
constexpr Table e8m0_table = make_table([](std::uint32_t code) { return decode_e8m0(code); });
constexpr Table e2m3_table = make_table([](std::uint32_t code) { return decode(format_of<Dtype::f6_e2m3>(), code); });
constexpr Table e3m2_table = make_table([](std::uint32_t code) { return decode(format_of<Dtype::f6_e3m2>(), code); });
constexpr Table e2m1_table = make_table([](std::uint32_t code) { return decode(format_of<Dtype::f4>(), code); });

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

float f16_to_float(std::uint16_t code) noexcept { return decode(format_of<Dtype::f16>(), code); }

std::uint16_t float_to_f16(float value) noexcept {
  return static_cast<std::uint16_t>(encode(format_of<Dtype::f16>(), value, Overflow::infinity));
}

float decode_small_float(Dtype dtype, std::uint16_t code) {
  if (dtype == Dtype::bf16) return bf16_to_float(code);
  if (dtype == Dtype::f16) return f16_to_float(code);
  auto const* const table = table_of(dtype);
  if (table == nullptr) refuse(dtype);
  return (*table)[code & ((1U << bits_of(dtype)) - 1U)];
}

std::uint16_t encode_small_float(Dtype dtype, float value, Overflow overflow) {
  auto const as = [&](kernels::Format format) { return static_cast<std::uint16_t>(encode(format, value, overflow)); };
  switch (dtype) {
    case Dtype::f16: return as(format_of<Dtype::f16>());
    case Dtype::bf16: {
      auto const code = float_to_bf16(value);
      bool const overflows = (code & 0x7fffU) == format_of<Dtype::bf16>().infinity() && overflow == Overflow::saturate;
      return overflows ? static_cast<std::uint16_t>(code - 1U) : code;
    }
    case Dtype::f8_e5m2: return as(format_of<Dtype::f8_e5m2>());
    case Dtype::f8_e4m3: return as(format_of<Dtype::f8_e4m3>());
    case Dtype::f8_e5m2fnuz: return as(format_of<Dtype::f8_e5m2fnuz>());
    case Dtype::f8_e4m3fnuz: return as(format_of<Dtype::f8_e4m3fnuz>());
    case Dtype::f8_e8m0: return static_cast<std::uint16_t>(encode_e8m0(value, overflow));
    case Dtype::f6_e2m3: return as(format_of<Dtype::f6_e2m3>());
    case Dtype::f6_e3m2: return as(format_of<Dtype::f6_e3m2>());
    case Dtype::f4: return as(format_of<Dtype::f4>());
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
