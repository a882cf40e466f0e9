#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/codec/io/read_window.hpp"

namespace crossrank::codec {

/// A tensor as a strided view of a storage. Every element is known to lie inside the storage.
struct StridedView {
  std::uint64_t first = 0;              ///< byte of the storage where the first element begins
  std::size_t element_bytes = 1;        ///< bytes of one element, at most 16
  std::vector<std::int64_t> lengths{};  ///< elements in each dimension
  std::vector<std::int64_t> strides{};  ///< elements from one entry to the next
  [[nodiscard]] std::int64_t numel() const noexcept;
  /// Returns whether the elements are contiguous in row-major order.
  [[nodiscard]] bool is_dense() const noexcept;
};

/// Copies bytes `[offset, offset + out.size())` of the view's row-major form. Reads the storage in its own order, block
/// by block, so that a transposed matrix costs one pass per call.
void read_strided(ReadWindow& storage, StridedView const& view, std::uint64_t offset, std::span<std::byte> out);

}  // namespace crossrank::codec
