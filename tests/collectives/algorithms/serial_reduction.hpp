#pragma once
#include <complex>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

#include <crossrank/collective/reduce_op.hpp>
#include <crossrank/tensor.hpp>

#include "lib/tensor/small_float.hpp"

/// Reductions of one element after the other, in rank order. They share only the codecs of the formats with the
/// library.
namespace crossrank::test {

inline std::vector<Dtype> const reducible_integers{Dtype::u8,  Dtype::i8,  Dtype::u16, Dtype::i16,
                                                   Dtype::u32, Dtype::i32, Dtype::u64, Dtype::i64};
inline std::vector<Dtype> const reducible_floats{Dtype::f32,         Dtype::f64,        Dtype::f16,
                                                 Dtype::bf16,        Dtype::f8_e4m3,    Dtype::f8_e5m2,
                                                 Dtype::f8_e4m3fnuz, Dtype::f8_e5m2fnuz};
inline std::vector<ReduceOp> const integer_ops{ReduceOp::sum,  ReduceOp::prod, ReduceOp::min, ReduceOp::max,
                                               ReduceOp::band, ReduceOp::bor,  ReduceOp::bxor};
inline std::vector<ReduceOp> const float_ops{ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max,
                                             ReduceOp::avg};
inline std::vector<ReduceOp> const complex_ops{ReduceOp::sum, ReduceOp::prod, ReduceOp::avg};

/// Calls `body` with every dtype that can be reduced and the ops that it supports.
template <class Body>
void for_each_reduction(Body body) {
  for (auto const dtype : reducible_integers) {
    for (auto const op : integer_ops) body(dtype, op);
  }
  for (auto const dtype : reducible_floats) {
    for (auto const op : float_ops) body(dtype, op);
  }
  for (auto const op : complex_ops) body(Dtype::c64, op);
}

/// Returns elements with random bits, but no NaN, because the bits of a NaN are not specified.
inline std::vector<std::byte> random_elements(Dtype dtype, std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count * bits_of(dtype) / 8);
  auto const put = [&](std::size_t at, auto value) { std::memcpy(bytes.data() + at, &value, sizeof value); };
  for (std::size_t i = 0; i < count; ++i) {
    auto const number = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 64.0F;
    if (dtype == Dtype::f32) {
      put(i * 4, number);
    } else if (dtype == Dtype::f64) {
      put(i * 8, static_cast<double>(number) * 1.1);
    } else if (dtype == Dtype::c64) {
      put(i * 8, std::complex<float>(number, static_cast<float>(random() % 100) / 7.0F));
    } else if (is_small_float(dtype)) {
      auto const code = encode_small_float(dtype, number);
      std::memcpy(bytes.data() + i * bits_of(dtype) / 8, &code, bits_of(dtype) / 8);
    } else {
      for (std::size_t b = 0; b < bits_of(dtype) / 8; ++b)
        bytes[i * bits_of(dtype) / 8 + b] = static_cast<std::byte>(random());
    }
  }
  return bytes;
}

namespace serial {

template <class T>
T combine_integers(T a, T b, ReduceOp op) {
  auto const x = std::uint64_t{static_cast<std::make_unsigned_t<T>>(a)};
  auto const y = std::uint64_t{static_cast<std::make_unsigned_t<T>>(b)};
  switch (op) {
    case ReduceOp::sum: return static_cast<T>(x + y);
    case ReduceOp::prod: return static_cast<T>(x * y);
    case ReduceOp::min: return std::min(a, b);
    case ReduceOp::max: return std::max(a, b);
    case ReduceOp::band: return static_cast<T>(x & y);
    case ReduceOp::bor: return static_cast<T>(x | y);
    default: return static_cast<T>(x ^ y);
  }
}

template <class T>
T combine_floats(T a, T b, ReduceOp op) {
  switch (op) {
    case ReduceOp::prod: return a * b;
    case ReduceOp::min: return b < a ? b : a;
    case ReduceOp::max: return b > a ? b : a;
    default: return a + b;
  }
}

template <class T, class Combine, class Finish>
std::vector<std::byte> reduce(std::vector<std::vector<std::byte>> const& inputs, Combine combine, Finish finish) {
  std::vector<std::byte> out(inputs.front().size());
  for (std::size_t at = 0; at < out.size(); at += sizeof(T)) {
    T value{};
    std::memcpy(&value, inputs[0].data() + at, sizeof value);
    for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
      T next{};
      std::memcpy(&next, inputs[rank].data() + at, sizeof next);
      value = combine(value, next);
    }
    value = finish(value);
    std::memcpy(out.data() + at, &value, sizeof value);
  }
  return out;
}

template <class T>
std::vector<std::byte> integers(std::vector<std::vector<std::byte>> const& inputs, ReduceOp op) {
  return reduce<T>(
      inputs, [&](T a, T b) { return combine_integers(a, b, op); }, [](T v) { return v; });
}

template <class T>
std::vector<std::byte> floats(std::vector<std::vector<std::byte>> const& inputs, ReduceOp op) {
  auto const n = static_cast<T>(inputs.size());
  return reduce<T>(
      inputs, [&](T a, T b) { return combine_floats(a, b, op); }, [&](T v) { return op == ReduceOp::avg ? v / n : v; });
}

struct Pair {
  float re;
  float im;
};

inline std::vector<std::byte> complex(std::vector<std::vector<std::byte>> const& inputs, ReduceOp op) {
  auto const n = static_cast<float>(inputs.size());
  return reduce<Pair>(
      inputs,
      [&](Pair a, Pair b) {
        if (op != ReduceOp::prod) return Pair{a.re + b.re, a.im + b.im};
        // One rounding per operation: the compiler must not fuse a product with a sum.
        float volatile const p[] = {a.re * b.re, a.im * b.im, a.re * b.im, a.im * b.re};
        return Pair{p[0] - p[1], p[2] + p[3]};
      },
      [&](Pair v) {
        return op == ReduceOp::avg ? Pair{v.re / n, v.im / n} : v;
      });
}

inline std::vector<std::byte> small(std::vector<std::vector<std::byte>> const& inputs, Dtype dtype, ReduceOp op) {
  if (inputs.size() == 1) return inputs.front();
  auto const bytes = bits_of(dtype) / 8;
  std::vector<std::byte> out(inputs.front().size());
  for (std::size_t at = 0; at < out.size(); at += bytes) {
    float value = 0;
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      std::uint16_t code = 0;
      std::memcpy(&code, inputs[rank].data() + at, bytes);
      auto const next = decode_small_float(dtype, code);
      value = rank == 0 ? next : combine_floats(value, next, op);
    }
    if (op == ReduceOp::avg) value /= static_cast<float>(inputs.size());
    auto const code = encode_small_float(dtype, value);
    std::memcpy(out.data() + at, &code, bytes);
  }
  return out;
}

}  // namespace serial

/// Returns the result of combining the inputs of the ranks in rank order.
inline std::vector<std::byte> reduce_serially(std::vector<std::vector<std::byte>> const& inputs, Dtype dtype,
                                              ReduceOp op) {
  switch (dtype) {
    case Dtype::u8: return serial::integers<std::uint8_t>(inputs, op);
    case Dtype::i8: return serial::integers<std::int8_t>(inputs, op);
    case Dtype::u16: return serial::integers<std::uint16_t>(inputs, op);
    case Dtype::i16: return serial::integers<std::int16_t>(inputs, op);
    case Dtype::u32: return serial::integers<std::uint32_t>(inputs, op);
    case Dtype::i32: return serial::integers<std::int32_t>(inputs, op);
    case Dtype::u64: return serial::integers<std::uint64_t>(inputs, op);
    case Dtype::i64: return serial::integers<std::int64_t>(inputs, op);
    case Dtype::f32: return serial::floats<float>(inputs, op);
    case Dtype::f64: return serial::floats<double>(inputs, op);
    case Dtype::c64: return serial::complex(inputs, op);
    default: return serial::small(inputs, dtype, op);
  }
}

}  // namespace crossrank::test
