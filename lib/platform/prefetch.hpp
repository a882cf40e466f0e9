#pragma once

namespace crossrank::platform {

/// Prefetches the cache line at `address` for a write. A hint: any address is allowed.
inline void prefetch_for_write(void const* address) noexcept {
#if defined(__x86_64__)
  // The builtin prefetches for a read, unless the compiler may assume a CPU with this instruction. Other CPUs ignore
  // it.
  asm volatile("prefetchw %0" : : "m"(*static_cast<char const*>(address)));
#else
  __builtin_prefetch(address, 1);
#endif
}

}  // namespace crossrank::platform
