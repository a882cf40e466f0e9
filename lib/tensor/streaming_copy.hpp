#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace crossrank {

/// How a copy writes its destination.
enum class StoreMode : std::uint8_t {
  automatic,  ///< streaming from `threshold` on, else normal
  normal,     ///< through the caches, where the next reader finds the bytes
  streaming,  ///< past the caches, without reading the destination's old lines first
};

struct CopyHint {
  StoreMode stores = StoreMode::automatic;
  std::size_t threshold = 0;  ///< bytes from which `automatic` streams; 0: `streaming_threshold(sharers)`
  int sharers = 1;            ///< ranks of this node that copy at the same time and share the last-level cache
};

/// Copies `bytes` bytes between ranges that do not overlap.
///
/// A streaming copy ends with a store fence, so that a release store after it publishes the bytes as after an ordinary
/// copy.
void copy_bytes(std::byte* to, std::byte const* from, std::size_t bytes, CopyHint hint = {});

/// One of several interleaved copies.
struct CopySegment {
  std::byte* to = nullptr;
  std::byte const* from = nullptr;
  std::size_t bytes = 0;
  StoreMode stores = StoreMode::normal;  ///< not `automatic`
};

/// Makes several copies, a few lines of each in turn. Modifies the list. A destination must not overlap any other
/// range.
///
/// While one copy waits for memory the others continue, and a source that two of them share is read once. Measured on
/// two cores of Zen 4 with one ordinary and two streaming copies: 256 B of each in turn took 5.1 ms, 1 KiB 7.1 ms
/// (loads and stores then fall on the same cache sets), 4 KiB 5.7 ms, and one copy after the other 7.6 ms.
void copy_interleaved(std::span<CopySegment> parts);

/// Returns the size from which source and destination of one of `sharers` ranks no longer fit in the last-level cache.
[[nodiscard]] std::size_t streaming_threshold(int sharers) noexcept;

/// The implementations of a copy. cpuid selects the streaming one, once.
enum class CopyKernel : std::uint8_t { standard, sse2, avx2, avx512 };

[[nodiscard]] std::string_view to_string(CopyKernel kernel) noexcept;
/// Returns whether this machine can run `kernel`.
[[nodiscard]] bool has_kernel(CopyKernel kernel) noexcept;
/// Returns the kernel that `StoreMode::streaming` uses.
[[nodiscard]] CopyKernel streaming_kernel() noexcept;
/// Copies with the given kernel, which this machine must have. For tests and benchmarks.
void copy_with(CopyKernel kernel, std::byte* to, std::byte const* from, std::size_t bytes);

}  // namespace crossrank
