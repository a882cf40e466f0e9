#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace crossrank::platform {

/// How a copy writes its destination.
enum class StoreMode : std::uint8_t {
  automatic,  ///< streaming from the threshold on, normal below
  normal,     ///< through the caches: whoever reads next finds the bytes there
  streaming,  ///< past the caches: the destination's old lines are not read first
};

struct CopyHint {
  StoreMode stores = StoreMode::automatic;
  std::size_t threshold = 0;  ///< bytes from which `automatic` streams; 0: `streaming_threshold(sharers)`
  int sharers = 1;            ///< ranks of this node that copy at the same time and share the last cache
};

/// Copies `bytes` from `from` to `to`, which must not overlap.
///
/// A streaming copy ends with a store fence, so a release store after it publishes the bytes like those of any other.
void copy_bytes(std::byte* to, std::byte const* from, std::size_t bytes, CopyHint hint = {});

/// One of several copies that are made together.
struct CopySegment {
  std::byte* to = nullptr;
  std::byte const* from = nullptr;
  std::size_t bytes = 0;
  StoreMode stores = StoreMode::normal;  ///< not `automatic`
};

/// Makes all of these copies, some lines of each in turn, and uses the list up. No destination may overlap anything
/// else.
///
/// Where one of them waits for memory the others go on, and a source that two of them share is read once. Measured on
/// two cores of Zen 4, an ordinary copy beside two streaming ones: 256 B of each in turn took 5.1 ms where 4 KiB
/// took 5.7, 1 KiB 7.1 (what is loaded and what is stored then falls on the same sets) and one after the other 7.6.
void copy_interleaved(std::span<CopySegment> parts);

/// Size from which source and destination of one of `sharers` ranks no longer fit the last-level cache together.
[[nodiscard]] std::size_t streaming_threshold(int sharers) noexcept;

/// The ways to copy. Which one streams is decided once, by cpuid.
enum class CopyKernel : std::uint8_t { standard, sse2, avx2, avx512 };

[[nodiscard]] std::string_view to_string(CopyKernel kernel) noexcept;
/// Whether this machine can run `kernel`.
[[nodiscard]] bool has_kernel(CopyKernel kernel) noexcept;
/// The kernel behind `StoreMode::streaming`.
[[nodiscard]] CopyKernel streaming_kernel() noexcept;
/// Copies by one given kernel, which this machine must have. For tests and benchmarks.
void copy_with(CopyKernel kernel, std::byte* to, std::byte const* from, std::size_t bytes);

}  // namespace crossrank::platform
