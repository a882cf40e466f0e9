#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/codec/io/byte_source.hpp"

namespace crossrank::codec {

/// Reads many small pieces of a part of a source, which come mostly in rising order, by few large reads.
class ReadWindow {
 public:
  /// Most bytes that `view` gives.
  static constexpr std::size_t block_bytes = std::size_t{1} << 20;

  /// Of the `bytes` bytes of `source` from `begin` on.
  ReadWindow(ByteSource const& source, std::uint64_t begin, std::uint64_t bytes);

  /// `count` bytes from `at` on, until the next call.
  [[nodiscard]] std::byte const* view(std::uint64_t at, std::size_t count);
  /// Copies bytes from `at` on; large pieces go straight to where they are wanted.
  void copy(std::uint64_t at, std::span<std::byte> to);

 private:
  ByteSource const& source_;
  std::uint64_t begin_;
  std::uint64_t bytes_;
  std::byte const* memory_ = nullptr;  ///< all of the part, where the source has it in memory
  std::vector<std::byte> block_{};
  std::uint64_t block_at_ = 0;
};

}  // namespace crossrank::codec
