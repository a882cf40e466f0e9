#pragma once

namespace crossrank::platform {

/// Brings the cache line at `address` to this core, ready to be written, while the caller does something else. A hint:
/// any address will do.
inline void prefetch_for_write(void const* address) noexcept {
#if defined(__x86_64__)
  // The compiler's own way asks for a line to read, unless it may suppose a CPU that has this instruction; those that
  // do not have it pass over it.
  asm volatile("prefetchw %0" : : "m"(*static_cast<char const*>(address)));
#else
  __builtin_prefetch(address, 1);
#endif
}

}  // namespace crossrank::platform
