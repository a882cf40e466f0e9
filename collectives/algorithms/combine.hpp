#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <crossrank/collective/reduce_op.hpp>

#include "lib/device/kernels/combine_values.hpp"

/// The work of reduce kernels on one element and on a block. All of it is inlined into functions that are each compiled
/// for one instruction set.
namespace crossrank::algorithms {

#define CROSSRANK_INTO_KERNEL [[gnu::always_inline]] inline

/// Elements that a kernel works on at a time: few enough for the first-level cache.
inline constexpr std::size_t block_elements = 1024;

using kernels::combine;
using kernels::Complex;
using kernels::is_complex;

struct [[gnu::packed, gnu::may_alias]] UnalignedComplex {
  float re;
  float im;
  operator Complex() const { return {re, im}; }  // NOLINT(google-explicit-constructor): read as a Complex
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
    for (std::size_t i = 0; i < n; ++i) values[i] = kernels::average(values[i], ranks);
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
