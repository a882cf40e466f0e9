#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <crossrank/tensor/dtype.hpp>

#include "lib/core/as_size.hpp"

namespace crossrank::checkpoint {

/// The sizes and scales of a matrix with one scale per block, or of a stack of such matrices.
struct BlockGrid {
  std::int64_t rows = 0;     ///< rows of a matrix
  std::int64_t columns = 0;  ///< columns of a matrix
  std::int64_t block_rows = 1;
  std::int64_t block_columns = 1;
  std::vector<float> scales{};  ///< one per block, row-major; the last blocks of a row or column may be smaller
  std::int64_t matrices = 1;    ///< size of the stack; `scales` has one matrix after the other

  [[nodiscard]] std::int64_t grid_rows() const noexcept { return (rows + block_rows - 1) / block_rows; }
  [[nodiscard]] std::int64_t grid_columns() const noexcept { return (columns + block_columns - 1) / block_columns; }
  /// Returns the index in `scales` of the scale of a number.
  [[nodiscard]] std::size_t scale_at(std::int64_t matrix, std::int64_t row, std::int64_t column) const noexcept {
    auto const block = row / block_rows * grid_columns() + column / block_columns;
    return as_size(matrix * grid_rows() * grid_columns() + block);
  }
  [[nodiscard]] float scale(std::int64_t matrix, std::int64_t row, std::int64_t column) const {
    return scales[scale_at(matrix, row, column)];
  }
};

/// Consecutive rows or columns of a shard that stay together, and their begin in the merged matrix.
struct AxisRange {
  std::int64_t from = 0;
  std::int64_t length = 0;
  std::int64_t to = 0;
};

/// A shard and its place in the merged matrix. The ranges cover dimension `axis` (0 or 1) of the shard in order.
struct ShardBlocks {
  BlockGrid grid{};
  int axis = 0;
  std::vector<AxisRange> ranges{};
};

/// Gives each block of the merged matrix the largest scale of the shards' blocks that overlap it. Expects `whole` to
/// have its sizes, and sets its scales.
void merge_scales(BlockGrid& whole, std::span<ShardBlocks const> shards);

/// Returns whether every block of the shard keeps its scale in the merged matrix, so that its values do not change.
[[nodiscard]] bool keeps_scales(ShardBlocks const& shard, BlockGrid const& whole);

/// Converts the F8 values of one shard to the scales of the merged matrix: rounds to the nearest value and saturates.
class BlockRescale {
 public:
  BlockRescale(Dtype dtype, ShardBlocks shard, std::shared_ptr<BlockGrid const> whole);
  /// Changes bytes `[offset, offset + bytes.size())` of the shard, one per value.
  void apply(std::uint64_t offset, std::span<std::byte> bytes) const;
  /// Returns a checksum of everything that determines the conversion.
  [[nodiscard]] std::uint64_t digest() const;

 private:
  /// Returns the place of index `at` of the shard in the merged matrix, and how many indices from there on stay
  /// together.
  [[nodiscard]] AxisRange place(std::int64_t at) const;

  Dtype dtype_;
  ShardBlocks shard_;
  std::shared_ptr<BlockGrid const> whole_;
};

}  // namespace crossrank::checkpoint
