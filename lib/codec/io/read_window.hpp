#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/codec/io/byte_source.hpp"

namespace crossrank::codec {

/// Reads many small pieces of a part of a source with few large reads. The pieces should come mostly in ascending
/// order.
class ReadWindow {
 public:
  /// Largest size of a `view`.
  static constexpr std::size_t block_bytes = std::size_t{1} << 20;

  /// Makes a window on the `bytes` bytes of `source` from `begin` on, which reads up to `block` bytes at once, or one
  /// piece if that is larger.
  ReadWindow(ByteSource const& source, std::uint64_t begin, std::uint64_t bytes, std::size_t block = block_bytes);

  /// Returns `count` bytes from `at` on, valid until the next call.
  [[nodiscard]] std::byte const* view(std::uint64_t at, std::size_t count);
  /// Copies bytes from `at` on. Reads large pieces directly into `to`.
  void copy(std::uint64_t at, std::span<std::byte> to);

 private:
  ByteSource const& source_;
  std::uint64_t begin_;
  std::uint64_t bytes_;
  std::size_t most_;
  std::byte const* memory_ = nullptr;  ///< the whole part, if the source is in memory
  std::vector<std::byte> block_{};
  std::uint64_t block_at_ = 0;
};

}  // namespace crossrank::codec
