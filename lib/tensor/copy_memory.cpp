#include "lib/tensor/copy_memory.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace crossrank {
namespace {

#if defined(__x86_64__)

constexpr std::size_t line = 64;

/// Bytes that a kernel copies per step. It loads all of them before it stores any.
constexpr std::size_t block = 2 * line;
static_assert(rep_movsb_min_bytes >= 2 * block);

// The same loop exists twice. A template over the block would be compiled without AVX2, and then neither GCC nor Clang
// inlines loads and stores that need AVX2.
struct BlockAvx2 {
  __m256i parts[4];
};

__attribute__((target("avx2"), always_inline)) inline BlockAvx2 load_avx2(std::byte const* from) noexcept {
  auto const* const at = reinterpret_cast<__m256i const*>(from);
  return {{_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1), _mm256_loadu_si256(at + 2), _mm256_loadu_si256(at + 3)}};
}

__attribute__((target("avx2"), always_inline)) inline void store_avx2(std::byte* to, BlockAvx2 const& loaded) noexcept {
  auto* const at = reinterpret_cast<__m256i*>(to);
  for (int i = 0; i < 4; ++i) _mm256_storeu_si256(at + i, loaded.parts[i]);
}

/// Copies whole blocks from the first line boundary of the destination on. Overlapping blocks cover both ends.
__attribute__((target("avx2"))) void copy_avx2(std::byte* to, std::byte const* from, std::size_t bytes) noexcept {
  auto const skip = line - reinterpret_cast<std::uintptr_t>(to) % line;
  auto const first = load_avx2(from);
  auto const last = load_avx2(from + bytes - block);
  for (auto at = skip; at + block <= bytes; at += block) store_avx2(to + at, load_avx2(from + at));
  store_avx2(to, first);
  store_avx2(to + bytes - block, last);
}

struct BlockSse2 {
  __m128i parts[8];
};

inline BlockSse2 load_sse2(std::byte const* from) noexcept {
  BlockSse2 loaded;
  auto const* const at = reinterpret_cast<__m128i const*>(from);
  for (int i = 0; i < 8; ++i) loaded.parts[i] = _mm_loadu_si128(at + i);
  return loaded;
}

inline void store_sse2(std::byte* to, BlockSse2 const& loaded) noexcept {
  auto* const at = reinterpret_cast<__m128i*>(to);
  for (int i = 0; i < 8; ++i) _mm_storeu_si128(at + i, loaded.parts[i]);
}

void copy_sse2(std::byte* to, std::byte const* from, std::size_t bytes) noexcept {
  auto const skip = line - reinterpret_cast<std::uintptr_t>(to) % line;
  auto const first = load_sse2(from);
  auto const last = load_sse2(from + bytes - block);
  for (auto at = skip; at + block <= bytes; at += block) store_sse2(to + at, load_sse2(from + at));
  store_sse2(to, first);
  store_sse2(to + bytes - block, last);
}

#endif

}  // namespace

void copy_by_vectors(void* to, void const* from, std::size_t bytes) noexcept {
#if defined(__x86_64__)
  static bool const has_avx2 = __builtin_cpu_supports("avx2") != 0;
  (has_avx2 ? copy_avx2 : copy_sse2)(static_cast<std::byte*>(to), static_cast<std::byte const*>(from), bytes);
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace crossrank
