#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/codec/io/read_window.hpp"

namespace crossrank::codec {

/// A tensor as a view of a storage. Checked: every element lies inside the storage.
struct StridedView {
  std::uint64_t first = 0;              ///< byte of the storage where the first element stands
  std::size_t element_bytes = 1;        ///< bytes of one element, at most 16
  std::vector<std::int64_t> lengths{};  ///< elements in each dimension
  std::vector<std::int64_t> strides{};  ///< elements from one entry to the next
  [[nodiscard]] std::int64_t numel() const noexcept;
  /// Whether the elements stand in the storage one behind the other, in row-major order.
  [[nodiscard]] bool is_dense() const noexcept;
};

/// Copies bytes `[offset, offset + out.size())` of the view's row-major form. The storage is walked in its own order, a
/// block at a time, so that a transposed matrix costs one pass over it for each call.
void read_strided(ReadWindow& storage, StridedView const& view, std::uint64_t offset, std::span<std::byte> out);

}  // namespace crossrank::codec
