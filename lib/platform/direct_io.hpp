#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace crossrank::platform {

/// What transfers past the page cache (O_DIRECT) want offset, length and memory to be multiples of. Devices with longer
/// blocks refuse with EINVAL; then the ordinary way is left.
inline constexpr std::size_t direct_block = 4096;

struct DirectDelete {
  void operator()(std::byte* memory) const noexcept { ::operator delete[](memory, std::align_val_t(direct_block)); }
};
/// Memory that such transfers take.
using DirectBuffer = std::unique_ptr<std::byte[], DirectDelete>;

/// Contents undefined.
[[nodiscard]] inline DirectBuffer make_direct_buffer(std::size_t bytes) {
  return DirectBuffer(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(direct_block))));
}

/// How much of the front of a transfer may go past the page cache.
[[nodiscard]] inline std::size_t direct_prefix_bytes(std::uint64_t offset, std::byte const* memory,
                                                     std::size_t bytes) noexcept {
  bool const aligned = offset % direct_block == 0 && reinterpret_cast<std::uintptr_t>(memory) % direct_block == 0;
  return aligned ? bytes / direct_block * direct_block : 0;
}

}  // namespace crossrank::platform
