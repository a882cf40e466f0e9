#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define CROSSRANK_COPIES_ARE_INSTRUMENTED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define CROSSRANK_COPIES_ARE_INSTRUMENTED 1
#endif
#endif
#ifndef CROSSRANK_COPIES_ARE_INSTRUMENTED
#define CROSSRANK_COPIES_ARE_INSTRUMENTED 0
#endif

/// How payloads are copied through the caches.
///
/// `memcpy` of the GNU C library up to 2.37 copies from about 2 KiB on with `rep movsb` where the processor says that
/// this is fast. On Zen 3 and 4 it is not where the destination lies less than a cache line behind the source, modulo
/// 4096: measured on Zen 4, 4 KiB take 3,572 ns at a distance of 1 byte and 42 ns at 64, 256 KiB take 290 us and 4.6.
/// A large block of the heap begins 16 bytes behind a page, an arena on a page, so copies between the caller's memory
/// and ours hit this. A loop over vectors with an aligned destination is as fast as `memcpy` at its best there (51 ns
/// and 4.5 us), so such copies take the loop, on every processor.
namespace crossrank {

/// Copies of fewer bytes are safe from `rep movsb`.
inline constexpr std::size_t rep_movsb_min_bytes = 2048;

/// Whether `memcpy` may be slow for these two places.
[[nodiscard]] inline bool is_slow_rep_movsb(void const* to, void const* from, std::size_t bytes) noexcept {
  constexpr std::uintptr_t page = 4096;
  constexpr std::uintptr_t line = 64;
  auto const behind = (reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from)) % page;
  return bytes >= rep_movsb_min_bytes && behind - 1 < line - 1;  // 1 to 63: a distance of 0 wraps
}

/// Copies by vector instructions; at least `rep_movsb_min_bytes` bytes, which must not overlap.
void copy_by_vectors(void* to, void const* from, std::size_t bytes) noexcept;

/// Copies `bytes` from `from` to `to`, which must not overlap. Null pointers are allowed for no bytes.
inline void copy_memory(void* to, void const* from, std::size_t bytes) noexcept {
  // Sanitizers see memcpy as one access, and check it.
  if (CROSSRANK_COPIES_ARE_INSTRUMENTED == 0 && is_slow_rep_movsb(to, from, bytes)) [[unlikely]] {
    copy_by_vectors(to, from, bytes);
  } else if (bytes != 0) {
    std::memcpy(to, from, bytes);
  }
}

/// The same for places that may overlap.
inline void move_memory(void* to, void const* from, std::size_t bytes) noexcept {
  auto const distance = reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from);
  bool const apart = distance >= bytes && std::uintptr_t{0} - distance >= bytes;
  if (apart) {
    copy_memory(to, from, bytes);
  } else {
    std::memmove(to, from, bytes);
  }
}

}  // namespace crossrank
