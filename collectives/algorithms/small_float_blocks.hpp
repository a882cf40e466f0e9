#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/algorithms/combine.hpp"
#include "lib/tensor/small_float.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#define CROSSRANK_REDUCE_X86 1
#else
#define CROSSRANK_REDUCE_X86 0
#endif

/// Blocks of small floats to F32 and back, for `reduce_in_f32`. All ways give the same bits.
namespace crossrank::algorithms {

struct Bf16 {
  static constexpr std::size_t bytes = 2;
  CROSSRANK_INTO_KERNEL static void decode(float* to, std::byte const* from, std::size_t n) {
    auto const* const codes = reinterpret_cast<Stored<std::uint16_t> const*>(from);
    for (std::size_t i = 0; i < n; ++i) to[i] = std::bit_cast<float>(std::uint32_t{codes[i]} << 16U);
  }
  CROSSRANK_INTO_KERNEL static void encode(std::byte* to, float const* from, std::size_t n) {
    auto* const codes = reinterpret_cast<Stored<std::uint16_t>*>(to);
    for (std::size_t i = 0; i < n; ++i) {
      auto const bits = std::bit_cast<std::uint32_t>(from[i]);
      auto const rounded = (bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U;
      auto const nan = (bits >> 16U) | 0x40U;
      codes[i] = static_cast<std::uint16_t>((bits & 0x7fff'ffffU) > 0x7f80'0000U ? nan : rounded);
    }
  }
};

/// Converts any format, one element at a time.
template <Dtype dtype, std::size_t Bytes>
struct ByTable {
  static constexpr std::size_t bytes = Bytes;
  static void decode(float* to, std::byte const* from, std::size_t n) {
    decode_small_floats(dtype, {from, n * Bytes}, {to, n});
  }
  static void encode(std::byte* to, float const* from, std::size_t n) {
    encode_small_floats(dtype, {from, n}, {to, n * Bytes});
  }
};

using F16Plain = ByTable<Dtype::f16, 2>;

#if CROSSRANK_REDUCE_X86
/// Converts F16 by the processor's instruction, 8 elements at a time, and the rest of a block one by one.
struct F16Converted {
  static constexpr std::size_t bytes = 2;
  __attribute__((target("avx2,f16c"))) static void decode(float* to, std::byte const* from, std::size_t n) {
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8) {
      __m128i const codes = _mm_loadu_si128(reinterpret_cast<__m128i const*>(from + 2 * i));
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(codes));
    }
    if (i < n) F16Plain::decode(to + i, from + 2 * i, n - i);
  }
  __attribute__((target("avx2,f16c"))) static void encode(std::byte* to, float const* from, std::size_t n) {
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8) {
      __m128i const codes = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 2 * i), codes);
    }
    if (i < n) F16Plain::encode(to + 2 * i, from + i, n - i);
  }
};
#endif

}  // namespace crossrank::algorithms
