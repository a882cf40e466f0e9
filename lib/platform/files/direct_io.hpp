#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace crossrank::platform {

/// Alignment of offset, length and memory for transfers past the page cache (O_DIRECT). A device with larger blocks
/// returns EINVAL; the caller then uses ordinary I/O.
inline constexpr std::size_t direct_block = 4096;

struct DirectDelete {
  void operator()(std::byte* memory) const noexcept { ::operator delete[](memory, std::align_val_t(direct_block)); }
};
/// Memory that is aligned for such transfers.
using DirectBuffer = std::unique_ptr<std::byte[], DirectDelete>;

/// Allocates a buffer with undefined contents.
[[nodiscard]] inline DirectBuffer make_direct_buffer(std::size_t bytes) {
  return DirectBuffer(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(direct_block))));
}

/// Returns how many bytes at the front of a transfer may go past the page cache.
[[nodiscard]] inline std::size_t direct_prefix_bytes(std::uint64_t offset, std::byte const* memory,
                                                     std::size_t bytes) noexcept {
  bool const aligned = offset % direct_block == 0 && reinterpret_cast<std::uintptr_t>(memory) % direct_block == 0;
  return aligned ? bytes / direct_block * direct_block : 0;
}

}  // namespace crossrank::platform
