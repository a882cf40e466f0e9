#include "tests/support/emulated_gpu/nccl/reduction.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tests/support/emulated_gpu/nccl/version.hpp"

namespace emulated::nccl {
namespace {

/// A small floating-point format: decoded by its fields, encoded to the nearest value with ties to even.
template <class Bits, int exponent_bits, int mantissa_bits, bool has_infinity>
struct Small {
  Bits bits;

  static float decode(Bits b) {
    constexpr int bias = (1 << (exponent_bits - 1)) - 1;
    int const exponent = (b >> mantissa_bits) & ((1 << exponent_bits) - 1);
    int const mantissa = b & ((1 << mantissa_bits) - 1);
    bool const negative = (b >> (exponent_bits + mantissa_bits)) & 1;
    bool const top = exponent == (1 << exponent_bits) - 1;
    float value = 0;
    if (top && has_infinity) {
      value = mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    } else if (top && mantissa == (1 << mantissa_bits) - 1) {
      value = std::numeric_limits<float>::quiet_NaN();
    } else if (exponent == 0) {
      value = std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits);
    } else {
      value = std::ldexp(static_cast<float>(mantissa + (1 << mantissa_bits)), exponent - bias - mantissa_bits);
    }
    return negative ? -value : value;
  }

  static Bits encode(float value) {
    // Magnitudes are ordered as their bits are: a binary search finds the neighbours.
    constexpr int all = 1 << (exponent_bits + mantissa_bits);
    constexpr int infinity = ((1 << exponent_bits) - 1) << mantissa_bits;
    auto const sign = static_cast<Bits>(std::signbit(value) ? all : 0);
    float const magnitude = std::fabs(value);
    if (std::isnan(value)) return static_cast<Bits>(sign | (all - 1));
    int const largest = has_infinity ? infinity - 1 : all - 2;
    int low = 0;
    int high = largest;
    while (low < high) {
      int const middle = (low + high + 1) / 2;
      if (decode(static_cast<Bits>(middle)) <= magnitude)
        low = middle;
      else
        high = middle - 1;
    }
    if (low == largest) {
      bool const beyond = magnitude > decode(static_cast<Bits>(largest)) * (1 + std::ldexp(1.0F, -mantissa_bits - 2));
      return static_cast<Bits>(sign | (beyond && has_infinity ? infinity : largest));
    }
    float const below = decode(static_cast<Bits>(low));
    float const above = decode(static_cast<Bits>(low + 1));
    bool const up = magnitude - below > above - magnitude || (magnitude - below == above - magnitude && low % 2 == 1);
    return static_cast<Bits>(sign | (up ? low + 1 : low));
  }

  explicit Small(float value = 0) : bits(encode(value)) {}
  explicit operator float() const { return decode(bits); }
};
using Half = Small<std::uint16_t, 5, 10, true>;
using Float8e4m3 = Small<std::uint8_t, 4, 3, false>;
using Float8e5m2 = Small<std::uint8_t, 5, 2, true>;

struct Bfloat16 {
  std::uint16_t bits = 0;
  explicit Bfloat16(float value = 0) {
    auto const whole = std::bit_cast<std::uint32_t>(value);
    bool const nan = std::isnan(value);
    bits = static_cast<std::uint16_t>((nan ? whole | 0x400000U : whole + 0x7FFFU + ((whole >> 16) & 1U)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

template <class T>
T larger(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::fmax(a, b);
  return a < b ? b : a;
}

template <class T>
T smaller(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::fmin(a, b);
  return b < a ? b : a;
}

template <class T>
T apply(T a, T b, ncclRedOp_t op) {
  switch (op) {
    case ncclProd: return static_cast<T>(a * b);
    case ncclMax: return larger(a, b);
    case ncclMin: return smaller(a, b);
    default: return static_cast<T>(a + b);
  }
}

template <class Stored, class Value>
struct As {
  static void reduce(std::byte* into, std::byte const* from, std::size_t count, ncclRedOp_t op) {
    for (std::size_t i = 0; i < count; ++i) {
      Stored a;
      Stored b;
      std::memcpy(&a, into + i * sizeof a, sizeof a);
      std::memcpy(&b, from + i * sizeof b, sizeof b);
      a = Stored(apply(static_cast<Value>(a), static_cast<Value>(b), op));
      std::memcpy(into + i * sizeof a, &a, sizeof a);
    }
  }
  static void divide(std::byte* values, std::size_t count, int by) {
    for (std::size_t i = 0; i < count; ++i) {
      Stored a;
      std::memcpy(&a, values + i * sizeof a, sizeof a);
      a = Stored(static_cast<Value>(static_cast<Value>(a) / static_cast<Value>(by)));
      std::memcpy(values + i * sizeof a, &a, sizeof a);
    }
  }
};

/// Calls `body` with the functions for a type. Integers are computed without sign overflow where that is the same.
template <class Body>
void with_type(ncclDataType_t type, ncclRedOp_t op, Body&& body) {
  bool const ordered = op == ncclMax || op == ncclMin || op == ncclAvg;
  switch (type) {
    case ncclInt8: return body(As<std::int8_t, int>{});
    case ncclUint8: return body(As<std::uint8_t, unsigned>{});
    case ncclInt32: return ordered ? body(As<std::int32_t, std::int64_t>{}) : body(As<std::uint32_t, std::uint32_t>{});
    case ncclUint32: return body(As<std::uint32_t, std::uint32_t>{});
    case ncclInt64:
      return op == ncclMax || op == ncclMin ? body(As<std::int64_t, std::int64_t>{})
                                            : body(As<std::uint64_t, std::uint64_t>{});
    case ncclUint64: return body(As<std::uint64_t, std::uint64_t>{});
    case ncclFloat16: return body(As<Half, float>{});
    case ncclFloat32: return body(As<float, float>{});
    case ncclFloat64: return body(As<double, double>{});
    case ncclBfloat16: return body(As<Bfloat16, float>{});
    case ncclFloat8e4m3: return body(As<Float8e4m3, float>{});
    case ncclFloat8e5m2: return body(As<Float8e5m2, float>{});
    default: return;
  }
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  constexpr std::array<std::size_t, 12> sizes = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  auto const known = version() >= 22400 ? sizes.size() : 10;
  auto const index = static_cast<std::size_t>(type);
  return index < known ? sizes[index] : 0;
}

void reduce_into(std::byte* into, std::byte const* from, std::size_t count, ncclDataType_t type, ncclRedOp_t op) {
  with_type(type, op, [&](auto functions) { functions.reduce(into, from, count, op); });
}

void divide(std::byte* values, std::size_t count, ncclDataType_t type, int by) {
  if (type == ncclInt64) return As<std::int64_t, std::int64_t>::divide(values, count, by);
  with_type(type, ncclAvg, [&](auto functions) { functions.divide(values, count, by); });
}

}  // namespace emulated::nccl
