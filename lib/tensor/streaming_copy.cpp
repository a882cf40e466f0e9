#include "lib/tensor/streaming_copy.hpp"

#include <algorithm>

#include <unistd.h>

#include "lib/core/as_size.hpp"
#include "lib/tensor/copy_memory.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define CROSSRANK_COPY_X86 1
#else
#define CROSSRANK_COPY_X86 0
#endif

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define CROSSRANK_COPY_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define CROSSRANK_COPY_SANITIZED 1
#endif
#endif
#ifndef CROSSRANK_COPY_SANITIZED
#define CROSSRANK_COPY_SANITIZED 0
#endif

namespace crossrank {
namespace {

constexpr std::size_t cache_line = 64;
constexpr std::size_t stream_block = 4 * cache_line;

/// Copies bytes. A streaming kernel copies whole blocks to a line boundary, and a fence must follow it.
using Kernel = void (*)(std::byte* to, std::byte const* from, std::size_t bytes);

void copy_standard(std::byte* to, std::byte const* from, std::size_t bytes) { copy_memory(to, from, bytes); }

std::size_t bytes_to_line(std::byte const* to) {
  return (cache_line - reinterpret_cast<std::uintptr_t>(to) % cache_line) % cache_line;
}

#if CROSSRANK_COPY_X86

// Streaming stores keep the hardware prefetcher from running far enough ahead of the loads. Measured on Zen 4: 21 GB/s
// without prefetching, 24.6 with this distance, no gain from longer ones. The prefetch is non-temporal, so that the
// source does not fill the cache.
constexpr std::size_t ahead = 6144;

/// Whether a kernel prefetches lines far ahead of its loads. That is useless for interleaved copies.
enum class Ahead : bool { no, yes };

/// Prefetches the block `ahead` bytes after `from`. It may lie past the end: a prefetch never faults.
template <Ahead prefetches>
inline void prefetch_block(std::byte const* from) {
  if constexpr (prefetches == Ahead::no) return;
  for (std::size_t at = 0; at < stream_block; at += cache_line) {
    _mm_prefetch(reinterpret_cast<char const*>(from + ahead + at), _MM_HINT_NTA);
  }
}

// The kernels differ only in the width of their registers. Each is spelt out, because the compiler inlines an intrinsic
// only into a function that names its instruction set.

template <Ahead prefetches>
void blocks_sse2(std::byte* to, std::byte const* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += stream_block) {
    prefetch_block<prefetches>(from + at);
    for (std::size_t i = at; i < at + stream_block; i += cache_line) {
      auto const* const source = reinterpret_cast<__m128i const*>(from + i);
      auto* const target = reinterpret_cast<__m128i*>(to + i);
      __m128i const a = _mm_loadu_si128(source);
      __m128i const b = _mm_loadu_si128(source + 1);
      __m128i const c = _mm_loadu_si128(source + 2);
      __m128i const d = _mm_loadu_si128(source + 3);
      _mm_stream_si128(target, a);
      _mm_stream_si128(target + 1, b);
      _mm_stream_si128(target + 2, c);
      _mm_stream_si128(target + 3, d);
    }
  }
}

template <Ahead prefetches>
__attribute__((target("avx2"))) void blocks_avx2(std::byte* to, std::byte const* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += stream_block) {
    prefetch_block<prefetches>(from + at);
    for (std::size_t i = at; i < at + stream_block; i += 2 * cache_line) {
      auto const* const source = reinterpret_cast<__m256i const*>(from + i);
      auto* const target = reinterpret_cast<__m256i*>(to + i);
      __m256i const a = _mm256_loadu_si256(source);
      __m256i const b = _mm256_loadu_si256(source + 1);
      __m256i const c = _mm256_loadu_si256(source + 2);
      __m256i const d = _mm256_loadu_si256(source + 3);
      _mm256_stream_si256(target, a);
      _mm256_stream_si256(target + 1, b);
      _mm256_stream_si256(target + 2, c);
      _mm256_stream_si256(target + 3, d);
    }
  }
}

template <Ahead prefetches>
__attribute__((target("avx512f"))) void blocks_avx512(std::byte* to, std::byte const* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += stream_block) {
    prefetch_block<prefetches>(from + at);
    __m512i const a = _mm512_loadu_si512(from + at);
    __m512i const b = _mm512_loadu_si512(from + at + cache_line);
    __m512i const c = _mm512_loadu_si512(from + at + 2 * cache_line);
    __m512i const d = _mm512_loadu_si512(from + at + 3 * cache_line);
    auto* const target = reinterpret_cast<__m512i*>(to + at);
    _mm512_stream_si512(target, a);
    _mm512_stream_si512(target + 1, b);
    _mm512_stream_si512(target + 2, c);
    _mm512_stream_si512(target + 3, d);
  }
}

template <Ahead prefetches>
Kernel block_kernel(CopyKernel kernel) {
  switch (kernel) {
    case CopyKernel::sse2: return blocks_sse2<prefetches>;
    case CopyKernel::avx2: return blocks_avx2<prefetches>;
    case CopyKernel::avx512: return blocks_avx512<prefetches>;
    case CopyKernel::standard: break;
  }
  return nullptr;
}

/// Streams the whole aligned blocks of the destination and copies the bytes before and after them ordinarily. A fence
/// must follow: streaming stores are weakly ordered, so a release store alone would not publish them.
void copy_streaming(Kernel kernel, std::byte* to, std::byte const* from, std::size_t bytes) {
  std::size_t const head = std::min(bytes_to_line(to), bytes);
  copy_standard(to, from, head);
  std::size_t const body = (bytes - head) / stream_block * stream_block;
  kernel(to + head, from + head, body);
  copy_standard(to + head + body, from + head + body, bytes - head - body);
}

#endif

CopyKernel best_kernel() noexcept {
#if CROSSRANK_COPY_X86 && !CROSSRANK_COPY_SANITIZED
  // sanitizers check memcpy but not the streaming instructions
  for (auto const kernel : {CopyKernel::avx512, CopyKernel::avx2, CopyKernel::sse2}) {
    if (has_kernel(kernel)) return kernel;
  }
#endif
  return CopyKernel::standard;
}

/// Returns the kernel that streams blocks of interleaved copies.
Kernel streaming_beside_others() {
#if CROSSRANK_COPY_X86
  if (auto const blocks = block_kernel<Ahead::no>(streaming_kernel()); blocks != nullptr) return blocks;
#endif
  return copy_standard;
}

void copy_front(CopySegment& part, std::size_t bytes, Kernel copy) {
  copy(part.to, part.from, bytes);
  part.to += bytes;
  part.from += bytes;
  part.bytes -= bytes;
}

#if CROSSRANK_COPY_X86
/// Returns the size of the outermost cache that cpuid leaf `leaf` describes; 0 when the processor does not have it.
std::size_t outermost_cache(unsigned leaf) noexcept {
  std::size_t outermost = 0;
  unsigned outermost_level = 0;
  for (unsigned index = 0; index < 8; ++index) {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    if (__get_cpuid_count(leaf, index, &a, &b, &c, &d) == 0 || (a & 0x1fU) == 0) break;
    unsigned const level = (a >> 5U) & 0x7U;
    if (level < outermost_level) continue;
    outermost_level = level;
    outermost = (std::size_t{b >> 22U} + 1) * (((b >> 12U) & 0x3ffU) + 1) * ((b & 0xfffU) + 1) * (std::size_t{c} + 1);
  }
  return outermost;
}
#endif

std::size_t last_cache_bytes() noexcept {
#if CROSSRANK_COPY_X86
  // cpuid comes first: on AMD the C library adds up the caches of a package, ten times the size that one core can use
  for (unsigned const leaf : {0x8000001dU, 4U}) {
    if (auto const bytes = outermost_cache(leaf); bytes != 0) return bytes;
  }
#endif
  constexpr long usual = 16L << 20;
  long bytes = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (bytes <= 0) bytes = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  return as_size(bytes > 0 ? bytes : usual);  // some virtual machines report nothing
}

}  // namespace

bool has_kernel(CopyKernel kernel) noexcept {
  if (kernel == CopyKernel::standard) return true;
#if CROSSRANK_COPY_X86
  if (kernel == CopyKernel::avx2) return __builtin_cpu_supports("avx2") != 0;
  if (kernel == CopyKernel::avx512) return __builtin_cpu_supports("avx512f") != 0;
  return kernel == CopyKernel::sse2;
#else
  return false;
#endif
}

CopyKernel streaming_kernel() noexcept {
  static CopyKernel const chosen = best_kernel();
  return chosen;
}

std::size_t streaming_threshold(int sharers) noexcept {
  static std::size_t const cache = last_cache_bytes();
  return cache / 2 / as_size(std::max(sharers, 1));
}

void copy_with(CopyKernel kernel, std::byte* to, std::byte const* from, std::size_t bytes) {
#if CROSSRANK_COPY_X86
  if (auto const blocks = block_kernel<Ahead::yes>(kernel); blocks != nullptr) {
    copy_streaming(blocks, to, from, bytes);
    _mm_sfence();
    return;
  }
#else
  static_cast<void>(kernel);
#endif
  copy_standard(to, from, bytes);
}

void copy_bytes(std::byte* to, std::byte const* from, std::size_t bytes, CopyHint hint) {
  bool streaming = hint.stores == StoreMode::streaming;
  if (hint.stores == StoreMode::automatic) {
    streaming = bytes >= (hint.threshold != 0 ? hint.threshold : streaming_threshold(hint.sharers));
  }
  copy_with(streaming ? streaming_kernel() : CopyKernel::standard, to, from, bytes);
}

void copy_interleaved(std::span<CopySegment> parts) {
  constexpr std::size_t page = 4096;
  auto const stream = streaming_beside_others();
  auto stripe = page;  // within the caches longer stripes are faster
  for (auto& part : parts) {
    if (part.stores != StoreMode::streaming) continue;
    copy_front(part, std::min(bytes_to_line(part.to), part.bytes), copy_standard);
    stripe = stream_block;
  }
  for (std::size_t left = 1; left != 0;) {
    left = 0;
    for (auto& part : parts) {
      auto const now = std::min(stripe, part.bytes);
      copy_front(part, now, now == stream_block && part.stores == StoreMode::streaming ? stream : copy_standard);
      left += part.bytes;
    }
  }
#if CROSSRANK_COPY_X86
  _mm_sfence();
#endif
}

std::string_view to_string(CopyKernel kernel) noexcept {
  switch (kernel) {
    case CopyKernel::standard: return "standard";
    case CopyKernel::sse2: return "sse2";
    case CopyKernel::avx2: return "avx2";
    case CopyKernel::avx512: return "avx512";
  }
  return "unknown";
}

}  // namespace crossrank
