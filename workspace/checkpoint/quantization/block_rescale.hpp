#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <crossrank/dtype.hpp>

namespace crossrank::checkpoint {

/// A matrix of numbers with one scale per block, or a stack of such matrices.
struct BlockGrid {
  std::int64_t rows = 0;     ///< of the matrix
  std::int64_t columns = 0;  ///< likewise
  std::int64_t block_rows = 1;
  std::int64_t block_columns = 1;
  std::vector<float> scales{};  ///< of the blocks, row-major; the last ones of a row or column may be narrower
  std::int64_t matrices = 1;    ///< in the stack, whose scales follow each other

  [[nodiscard]] std::int64_t grid_rows() const noexcept { return (rows + block_rows - 1) / block_rows; }
  [[nodiscard]] std::int64_t grid_columns() const noexcept { return (columns + block_columns - 1) / block_columns; }
  /// Where in `scales` that of a number stands.
  [[nodiscard]] std::size_t scale_at(std::int64_t matrix, std::int64_t row, std::int64_t column) const noexcept {
    auto const block = row / block_rows * grid_columns() + column / block_columns;
    return static_cast<std::size_t>(matrix * grid_rows() * grid_columns() + block);
  }
  [[nodiscard]] float scale(std::int64_t matrix, std::int64_t row, std::int64_t column) const {
    return scales[scale_at(matrix, row, column)];
  }
};

/// Rows (or columns) of a shard that stay together, and where in the joined matrix they begin.
struct AxisRange {
  std::int64_t from = 0;
  std::int64_t length = 0;
  std::int64_t to = 0;
};

/// Where a shard's numbers go: along dimension `axis` (0 or 1) as the ranges say, which cover it in order.
struct ShardBlocks {
  BlockGrid grid{};
  int axis = 0;
  std::vector<AxisRange> ranges{};
};

/// Gives each block of the joined matrix the largest scale of the blocks from which it takes numbers. `whole` has sizes
/// and no scales yet.
void merge_scales(BlockGrid& whole, std::span<ShardBlocks const> shards);

/// Whether every block of the shard keeps its scale in the joined matrix, so that its values stay as they are.
[[nodiscard]] bool keeps_scales(ShardBlocks const& shard, BlockGrid const& whole);

/// The F8 values of one shard in units of the joined matrix's scales: rounded to the nearest, saturated.
class BlockRescale {
 public:
  BlockRescale(Dtype dtype, ShardBlocks shard, std::shared_ptr<BlockGrid const> whole);
  /// Changes bytes `[offset, offset + bytes.size())` of the shard, one per value.
  void apply(std::uint64_t offset, std::span<std::byte> bytes) const;
  /// Of all that decides.
  [[nodiscard]] std::uint64_t digest() const;

 private:
  /// Where index `at` of the shard stands in the joined matrix, and how many from there on stay together.
  [[nodiscard]] AxisRange place(std::int64_t at) const;

  Dtype dtype_;
  ShardBlocks shard_;
  std::shared_ptr<BlockGrid const> whole_;
};

}  // namespace crossrank::checkpoint
