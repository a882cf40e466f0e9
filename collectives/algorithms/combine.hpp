#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <crossrank/collective/reduce_op.hpp>

/// The work of reduce kernels on one element and on a block. All of it is inlined into functions that are each compiled
/// for one instruction set.
namespace crossrank::algorithms {

#define CROSSRANK_INTO_KERNEL [[gnu::always_inline]] inline

/// Elements that a kernel works on at a time: few enough for the first-level cache.
inline constexpr std::size_t block_elements = 1024;

/// C64. A type of its own: the library's product mends infinities by a call, and so differs between compilers.
struct Complex {
  float re;
  float im;
};
template <class T>
inline constexpr bool is_complex = std::is_same_v<T, Complex>;

struct [[gnu::packed, gnu::may_alias]] UnalignedComplex {
  float re;
  float im;
  operator Complex() const { return {re, im}; }  // NOLINT(google-explicit-constructor): stands for one where it is read
};
template <class T>
struct InBuffer {
  using type [[gnu::aligned(1), gnu::may_alias]] = T;
};
template <>
struct InBuffer<Complex> {
  using type = UnalignedComplex;
};
/// An element as a buffer holds it, without alignment. Use it under this name: a template argument that is deduced or
/// passed on loses its attributes.
template <class T>
using Stored = typename InBuffer<T>::type;
static_assert(alignof(Stored<double>) == 1 && alignof(Stored<Complex>) == 1);

template <class T, ReduceOp op>
CROSSRANK_INTO_KERNEL T combine(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    // Wraps around: as unsigned numbers of 32 bits at least, so that no promotion makes them signed again.
    using Wide = std::common_type_t<std::make_unsigned_t<T>, unsigned>;
    auto const x = static_cast<Wide>(static_cast<std::make_unsigned_t<T>>(a));
    auto const y = static_cast<Wide>(static_cast<std::make_unsigned_t<T>>(b));
    if constexpr (op == ReduceOp::sum) return static_cast<T>(x + y);
    if constexpr (op == ReduceOp::prod) return static_cast<T>(x * y);
    if constexpr (op == ReduceOp::band) return static_cast<T>(x & y);
    if constexpr (op == ReduceOp::bor) return static_cast<T>(x | y);
    if constexpr (op == ReduceOp::bxor) return static_cast<T>(x ^ y);
    if constexpr (op == ReduceOp::min) return b < a ? b : a;
    if constexpr (op == ReduceOp::max) return b > a ? b : a;
  } else if constexpr (is_complex<T>) {
    if constexpr (op == ReduceOp::sum || op == ReduceOp::avg) return {a.re + b.re, a.im + b.im};
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  } else {
    if constexpr (op == ReduceOp::sum || op == ReduceOp::avg) return a + b;
    if constexpr (op == ReduceOp::prod) return a * b;
    // NaN spreads: a comparison with it is false, and so the sum of both, which is NaN, is taken.
    if constexpr (op == ReduceOp::min) return a <= b ? a : (b < a ? b : a + b);
    if constexpr (op == ReduceOp::max) return a >= b ? a : (b > a ? b : a + b);
  }
  return a;
}

/// `to[i] = a[i] op b[i]`
template <class T, ReduceOp op>
CROSSRANK_INTO_KERNEL void combine_first(T* to, Stored<T> const* a, Stored<T> const* b, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] = combine<T, op>(a[i], b[i]);
}

/// `to[i] = to[i] op b[i]`
template <class T, ReduceOp op>
CROSSRANK_INTO_KERNEL void combine_next(T* to, Stored<T> const* b, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] = combine<T, op>(to[i], b[i]);
}

/// The mean, from the sum.
template <class T, ReduceOp op>
CROSSRANK_INTO_KERNEL void average_block(T* values, std::size_t n, std::size_t ranks) {
  if constexpr (op == ReduceOp::avg && !std::is_integral_v<T>) {
    if constexpr (is_complex<T>) {
      auto const by = static_cast<float>(ranks);
      for (std::size_t i = 0; i < n; ++i) values[i] = {values[i].re / by, values[i].im / by};
    } else {
      auto const by = static_cast<T>(ranks);
      for (std::size_t i = 0; i < n; ++i) values[i] = values[i] / by;
    }
  }
}

/// Reduces elements in their own dtype.
template <class T, ReduceOp op>
CROSSRANK_INTO_KERNEL void reduce_plain(std::byte* out, std::byte const* const* inputs, std::size_t count,
                                        std::size_t elements) {
  alignas(64) T result[block_elements];
  for (std::size_t done = 0; done < elements; done += block_elements) {
    auto const n = std::min(block_elements, elements - done);
    auto const at = done * sizeof(T);
    auto const* const first = reinterpret_cast<Stored<T> const*>(inputs[0] + at);
    if (count == 1) {
      std::memcpy(result, first, n * sizeof(T));
    } else {
      combine_first<T, op>(result, first, reinterpret_cast<Stored<T> const*>(inputs[1] + at), n);
    }
    for (std::size_t rank = 2; rank < count; ++rank) {
      combine_next<T, op>(result, reinterpret_cast<Stored<T> const*>(inputs[rank] + at), n);
    }
    average_block<T, op>(result, n, count);
    std::memcpy(out + at, result, n * sizeof(T));
  }
}

/// Reduces elements in F32: `Format` decodes and encodes blocks of them.
template <class Format, ReduceOp op>
CROSSRANK_INTO_KERNEL void reduce_in_f32(std::byte* out, std::byte const* const* inputs, std::size_t count,
                                         std::size_t elements) {
  alignas(64) float result[block_elements];
  alignas(64) float next[block_elements];
  for (std::size_t done = 0; done < elements; done += block_elements) {
    auto const n = std::min(block_elements, elements - done);
    auto const at = done * Format::bytes;
    if (count == 1) {
      if (out != inputs[0]) std::memmove(out + at, inputs[0] + at, n * Format::bytes);
      continue;
    }
    Format::decode(result, inputs[0] + at, n);
    for (std::size_t rank = 1; rank < count; ++rank) {
      Format::decode(next, inputs[rank] + at, n);
      combine_next<float, op>(result, next, n);
    }
    average_block<float, op>(result, n, count);
    Format::encode(out + at, result, n);
  }
}

}  // namespace crossrank::algorithms
