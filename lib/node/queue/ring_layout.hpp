#pragma once
#include <cstdint>

#include "lib/core/round_up.hpp"
#include "lib/node/memory/control_layout.hpp"
#include "lib/node/memory/queue_layout.hpp"

/// The layout of a ring's chunks.
namespace crossrank::node {

inline constexpr std::uint64_t line_bytes = 64;

[[nodiscard]] inline std::uint64_t stride_of(std::uint64_t chunk_bytes) noexcept {
  return round_up(sizeof(QueueChunk) + chunk_bytes, line_bytes);
}

/// Returns the bytes of the ring; 0 for impossible numbers.
[[nodiscard]] inline std::uint64_t ring_bytes(std::uint64_t chunk_bytes, std::uint32_t chunks,
                                              std::uint64_t arena_bytes) noexcept {
  if (chunks == 0 || chunk_bytes > arena_bytes) return 0;
  auto const stride = stride_of(chunk_bytes);
  return stride > arena_bytes / chunks ? 0 : stride * chunks;
}

}  // namespace crossrank::node
