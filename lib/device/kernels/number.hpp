#pragma once
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <crossrank/tensor/dtype.hpp>

#include "lib/device/kernels/small_float_format.hpp"

/// Conversions of one number from dtype to dtype. The functions also compile for GPUs, and give the same bits
/// everywhere, those of a NaN included.
///
/// A number on its way is a double, a signed or an unsigned integer: each holds all numbers of its dtypes exactly.
namespace crossrank::kernels {

/// Calls `body.operator()<dtype>()` and returns true, or returns false for F4, the F6 formats and C64.
template <class Body>
[[gnu::always_inline]] constexpr bool with_number(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::boolean: return body.template operator()<Dtype::boolean>(), true;
    case Dtype::u8: return body.template operator()<Dtype::u8>(), true;
    case Dtype::i8: return body.template operator()<Dtype::i8>(), true;
    case Dtype::f8_e5m2: return body.template operator()<Dtype::f8_e5m2>(), true;
    case Dtype::f8_e4m3: return body.template operator()<Dtype::f8_e4m3>(), true;
    case Dtype::f8_e8m0: return body.template operator()<Dtype::f8_e8m0>(), true;
    case Dtype::f8_e4m3fnuz: return body.template operator()<Dtype::f8_e4m3fnuz>(), true;
    case Dtype::f8_e5m2fnuz: return body.template operator()<Dtype::f8_e5m2fnuz>(), true;
    case Dtype::i16: return body.template operator()<Dtype::i16>(), true;
    case Dtype::u16: return body.template operator()<Dtype::u16>(), true;
    case Dtype::f16: return body.template operator()<Dtype::f16>(), true;
    case Dtype::bf16: return body.template operator()<Dtype::bf16>(), true;
    case Dtype::i32: return body.template operator()<Dtype::i32>(), true;
    case Dtype::u32: return body.template operator()<Dtype::u32>(), true;
    case Dtype::f32: return body.template operator()<Dtype::f32>(), true;
    case Dtype::f64: return body.template operator()<Dtype::f64>(), true;
    case Dtype::i64: return body.template operator()<Dtype::i64>(), true;
    case Dtype::u64: return body.template operator()<Dtype::u64>(), true;
    default: return false;
  }
}

template <Dtype dtype>
constexpr auto code_of_dtype() {
  if constexpr (dtype == Dtype::i8)
    return std::int8_t{};
  else if constexpr (dtype == Dtype::i16)
    return std::int16_t{};
  else if constexpr (dtype == Dtype::u16 || dtype == Dtype::f16 || dtype == Dtype::bf16)
    return std::uint16_t{};
  else if constexpr (dtype == Dtype::i32)
    return std::int32_t{};
  else if constexpr (dtype == Dtype::u32)
    return std::uint32_t{};
  else if constexpr (dtype == Dtype::f32)
    return float{};
  else if constexpr (dtype == Dtype::f64)
    return double{};
  else if constexpr (dtype == Dtype::i64)
    return std::int64_t{};
  else if constexpr (dtype == Dtype::u64)
    return std::uint64_t{};
  else
    return std::uint8_t{};
}
/// The type of an element in memory. Small floats are codes.
template <Dtype dtype>
using Code = decltype(code_of_dtype<dtype>());

/// Converts exactly. Processors differ in the bits of a NaN, so those are made here: quiet, with the same payload.
constexpr double to_double(float value) {
  auto const bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fff'ffffU) <= float_infinity) return value;
  auto const sign = static_cast<std::uint64_t>(bits >> 31U) << 63U;
  return std::bit_cast<double>(sign | 0x7ff8'0000'0000'0000U | (static_cast<std::uint64_t>(bits & 0x7f'ffffU) << 29U));
}

/// Converts to the nearest float, ties to even. A NaN becomes quiet and keeps the upper bits of its payload.
constexpr float to_float(double value) {
  auto const bits = std::bit_cast<std::uint64_t>(value);
  if ((bits & 0x7fff'ffff'ffff'ffffU) <= 0x7ff0'0000'0000'0000U) return static_cast<float>(value);
  auto const sign = static_cast<std::uint32_t>(bits >> 63U) << 31U;
  auto const payload = static_cast<std::uint32_t>((bits & 0xf'ffff'ffff'ffffU) >> 29U);
  return std::bit_cast<float>(sign | float_infinity | float_quiet | payload);
}
constexpr float to_float(std::int64_t value) { return static_cast<float>(value); }
constexpr float to_float(std::uint64_t value) { return static_cast<float>(value); }

/// Rounds toward zero. A number beyond the integers becomes the nearest one, and NaN becomes 0.
template <class Integer>
constexpr Integer to_integer(double value) {
  constexpr auto limits = std::numeric_limits<Integer>();
  constexpr double end = static_cast<double>(std::uint64_t{1} << static_cast<unsigned>(limits.digits - 1)) * 2;
  if (!(value == value)) return 0;
  if (value <= static_cast<double>(limits.min())) return limits.min();
  if (value >= end) return limits.max();
  return static_cast<Integer>(value);
}

/// Returns the number of an element: a double, a signed or an unsigned integer.
template <Dtype dtype>
constexpr auto read_number(Code<dtype> code) {
  using Element = Code<dtype>;
  if constexpr (dtype == Dtype::boolean)
    return static_cast<std::uint64_t>(code != 0 ? 1 : 0);
  else if constexpr (dtype == Dtype::f64)
    return code;
  else if constexpr (dtype == Dtype::f32)
    return to_double(code);
  else if constexpr (dtype == Dtype::bf16)
    return to_double(bf16_to_float(code));
  else if constexpr (dtype == Dtype::f8_e8m0)
    return to_double(decode_e8m0(code));
  else if constexpr (has_format(dtype))
    return to_double(decode(format_of<dtype>(), code));
  else if constexpr (std::is_signed_v<Element>)
    return static_cast<std::int64_t>(code);
  else
    return static_cast<std::uint64_t>(code);
}

/// Returns the element nearest to a number. Floats of 8 and 16 bits are rounded from F32. Integers wrap around.
template <Dtype dtype, class Number>
constexpr Code<dtype> write_number(Number number) {
  using Element = Code<dtype>;
  constexpr bool is_real = std::is_same_v<Number, double>;
  if constexpr (dtype == Dtype::boolean)
    return number != 0 ? 1 : 0;
  else if constexpr (dtype == Dtype::f64)
    return static_cast<double>(number);
  else if constexpr (dtype == Dtype::f32)
    return to_float(number);
  else if constexpr (dtype == Dtype::bf16)
    return float_to_bf16(to_float(number));
  else if constexpr (dtype == Dtype::f8_e8m0)
    return static_cast<Element>(encode_e8m0(to_float(number), Overflow::infinity));
  else if constexpr (has_format(dtype))
    return static_cast<Element>(encode(format_of<dtype>(), to_float(number), Overflow::infinity));
  else if constexpr (is_real)
    return to_integer<Element>(number);
  else
    return static_cast<Element>(number);
}

}  // namespace crossrank::kernels
