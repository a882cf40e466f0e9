#include "workspace/checkpoint/quantization/block_rescale.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/core/as_size.hpp"
#include "lib/tensor/small_float.hpp"

namespace crossrank::checkpoint {
namespace {

/// Returns the distance from `at` to the end of its block.
std::int64_t left_in_block(std::int64_t at, std::int64_t block) { return block - at % block; }

AxisRange find_place(std::vector<AxisRange> const& ranges, std::int64_t at) {
  auto const after = std::upper_bound(ranges.begin(), ranges.end(), at,
                                      [](std::int64_t wanted, AxisRange const& each) { return wanted < each.from; });
  auto const& found = *std::prev(after);
  auto const inside = at - found.from;
  return {at, found.length - inside, found.to + inside};
}

/// Calls `visit(at, whole_at)` for each pair of overlapping blocks of a shard and of the whole matrix, with the indices
/// of their scales.
template <class Visit>
void for_each_overlap(ShardBlocks const& shard, BlockGrid const& whole, Visit visit) {
  auto const& grid = shard.grid;
  auto const step = [&](std::int64_t at, int axis, std::int64_t end) {
    bool const moved = shard.axis == axis;
    auto const to = moved ? find_place(shard.ranges, at) : AxisRange{at, end - at, at};
    auto const own = left_in_block(at, axis == 0 ? grid.block_rows : grid.block_columns);
    auto const joined = left_in_block(to.to, axis == 0 ? whole.block_rows : whole.block_columns);
    return std::pair(to.to, std::min({own, joined, to.length}));
  };
  for (std::int64_t matrix = 0; matrix < grid.matrices; ++matrix) {
    for (std::int64_t row = 0; row < grid.rows;) {
      auto const [whole_row, rows] = step(row, 0, grid.rows);
      for (std::int64_t column = 0; column < grid.columns;) {
        auto const [whole_column, columns] = step(column, 1, grid.columns);
        visit(grid.scale_at(matrix, row, column), whole.scale_at(matrix, whole_row, whole_column));
        column += columns;
      }
      row += rows;
    }
  }
}

}  // namespace

void merge_scales(BlockGrid& whole, std::span<ShardBlocks const> shards) {
  whole.scales.assign(as_size(whole.matrices * whole.grid_rows() * whole.grid_columns()), 0.0F);
  for (auto const& shard : shards) {
    for_each_overlap(shard, whole, [&](std::size_t at, std::size_t whole_at) {
      whole.scales[whole_at] = std::max(whole.scales[whole_at], shard.grid.scales[at]);
    });
  }
}

bool keeps_scales(ShardBlocks const& shard, BlockGrid const& whole) {
  bool kept = true;
  for_each_overlap(shard, whole, [&](std::size_t at, std::size_t whole_at) {
    kept = kept && shard.grid.scales[at] == whole.scales[whole_at];
  });
  return kept;
}

BlockRescale::BlockRescale(Dtype dtype, ShardBlocks shard, std::shared_ptr<BlockGrid const> whole)
    : dtype_(dtype), shard_(std::move(shard)), whole_(std::move(whole)) {}

AxisRange BlockRescale::place(std::int64_t at) const { return find_place(shard_.ranges, at); }

void BlockRescale::apply(std::uint64_t offset, std::span<std::byte> bytes) const {
  auto const& grid = shard_.grid;
  std::array<std::byte, 256> table{};
  float table_factor = 1.0F;
  for (std::size_t done = 0; done < bytes.size();) {
    auto const of_stack = static_cast<std::int64_t>(offset + done);
    auto const matrix = of_stack / (grid.rows * grid.columns);
    auto const at = of_stack % (grid.rows * grid.columns);
    auto const row = at / grid.columns;
    auto const column = at % grid.columns;
    auto const moved = place(shard_.axis == 0 ? row : column);
    auto const whole_row = shard_.axis == 0 ? moved.to : row;
    auto const whole_column = shard_.axis == 1 ? moved.to : column;
    auto run = std::min({grid.columns - column, left_in_block(column, grid.block_columns),
                         left_in_block(whole_column, whole_->block_columns)});
    if (shard_.axis == 1) run = std::min(run, moved.length);
    auto const values = bytes.subspan(done, std::min(as_size(run), bytes.size() - done));
    done += values.size();
    auto const common = whole_->scale(matrix, whole_row, whole_column);
    auto const factor = common > 0 ? grid.scale(matrix, row, column) / common : 1.0F;
    if (factor == 1.0F) continue;
    if (factor != table_factor) {
      for (std::size_t code = 0; code < table.size(); ++code) {
        auto const number = decode_small_float(dtype_, static_cast<std::uint16_t>(code));
        auto const scaled = encode_small_float(dtype_, number * factor, Overflow::saturate);
        table[code] = static_cast<std::byte>(std::isinf(number) ? code : scaled);
      }
      table_factor = factor;
    }
    for (auto& value : values) value = table[std::to_integer<std::size_t>(value)];
  }
}

std::uint64_t BlockRescale::digest() const {
  codec::StreamingChecksum sum;
  sum.update(std::as_bytes(std::span(shard_.grid.scales)));
  sum.update(std::as_bytes(std::span(whole_->scales)));
  for (auto const& range : shard_.ranges) {
    std::array<std::int64_t, 3> const numbers{range.from, range.length, range.to};
    sum.update(std::as_bytes(std::span(numbers)));
  }
  return sum.digest();
}

}  // namespace crossrank::checkpoint
