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
/// From about 2 KiB on, `memcpy` of the GNU C library up to 2.37 uses `rep movsb` if the processor reports that this is
/// fast. On Zen 3 and 4 it is slow when the destination begins less than a cache line after the source, modulo 4096.
/// Measured on Zen 4: 4 KiB take 3,572 ns at a distance of 1 byte and 42 ns at 64; 256 KiB take 290 us and 4.6 us. A
/// large heap block begins 16 bytes after a page boundary and an arena at one, so copies between the caller's memory
/// and an arena hit this case. A vector loop with an aligned destination is then as fast as `memcpy` at its best (51 ns
/// and 4.5 us), so such copies use the loop, on every processor.
namespace crossrank {

/// `memcpy` does not use `rep movsb` for fewer bytes.
inline constexpr std::size_t rep_movsb_min_bytes = 2048;

/// Returns whether `memcpy` may be slow for these two addresses.
[[nodiscard]] inline bool is_slow_rep_movsb(void const* to, void const* from, std::size_t bytes) noexcept {
  constexpr std::uintptr_t page = 4096;
  constexpr std::uintptr_t line = 64;
  auto const behind = (reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from)) % page;
  return bytes >= rep_movsb_min_bytes && behind - 1 < line - 1;  // true for 1 to 63: 0 wraps around
}

/// Copies at least `rep_movsb_min_bytes` bytes with vector instructions. The ranges must not overlap.
void copy_by_vectors(void* to, void const* from, std::size_t bytes) noexcept;

/// Copies `bytes` bytes. The ranges must not overlap. Pointers may be null when `bytes` is 0.
inline void copy_memory(void* to, void const* from, std::size_t bytes) noexcept {
  // Sanitizers check memcpy as one access.
  if (CROSSRANK_COPIES_ARE_INSTRUMENTED == 0 && is_slow_rep_movsb(to, from, bytes)) [[unlikely]] {
    copy_by_vectors(to, from, bytes);
  } else if (bytes != 0) {
    std::memcpy(to, from, bytes);
  }
}

/// Copies `bytes` bytes between ranges that may overlap.
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
