#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include <crossrank/collective.hpp>

#include "lib/core/reserved_tags.hpp"

namespace crossrank {

/// Tags of the messages that carry objects.
inline constexpr Tag header_tag{reserved_tags::object_head};
inline constexpr Tag body_tag{reserved_tags::object_body};

/// A larger block travels in pieces of this size.
inline constexpr std::size_t largest_piece = std::size_t{16} << 20;

/// Precedes a block of bytes and holds the whole of a small block. Fits into an arrival line of the shm backend.
struct BlockHeader {
  static constexpr std::size_t max_inlined = 48;

  std::uint64_t size = 0;
  std::uint32_t failed = 0;  ///< 1: the block is the serialized exception of the sender
  std::uint32_t number = 0;  ///< distinguishes the blocks of concurrent dictionaries
  std::array<std::byte, max_inlined> inlined{};

  [[nodiscard]] static bool fits(std::size_t bytes) noexcept { return bytes <= max_inlined; }
  [[nodiscard]] static BlockHeader of(std::span<std::byte const> bytes, bool failed) noexcept {
    BlockHeader head;
    head.size = bytes.size();
    head.failed = failed ? 1 : 0;
    if (fits(bytes.size())) std::copy(bytes.begin(), bytes.end(), head.inlined.begin());
    return head;
  }
  [[nodiscard]] bool is_inlined() const noexcept { return fits(size); }
  [[nodiscard]] std::vector<std::byte> inlined_bytes() const {
    if (!is_inlined()) return {};
    return {inlined.begin(), inlined.begin() + static_cast<std::ptrdiff_t>(size)};
  }
};
static_assert(sizeof(BlockHeader) == 64 && std::is_trivially_copyable_v<BlockHeader>);

}  // namespace crossrank
