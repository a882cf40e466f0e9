#include "workspace/checkpoint/rules/scales/fp8_blocks.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/tensor/small_float.hpp"
#include "workspace/checkpoint/quantization/block_rescale.hpp"
#include "workspace/checkpoint/quantization/requantize.hpp"

namespace crossrank::checkpoint {
namespace {

std::vector<std::int64_t> parts_of(LayerSharding const& sharding) {
  return sharding.parts.empty() ? std::vector<std::int64_t>{1} : sharding.parts;
}

/// The places of the parts of all shards in the merged tensor. Blocks of ranks follow each other; in each block all
/// first parts come first. Of neighbouring ranks with the same piece, the first one counts.
class Layout {
 public:
  Layout(LayerOnRanks const& layer, LayerSharding const& sharding)
      : parts_(parts_of(sharding)), ranks_(layer.formats.size()) {
    auto const sum = std::max(std::int64_t{1}, std::accumulate(parts_.begin(), parts_.end(), std::int64_t{0}));
    for (auto const& format : layer.formats) {
      auto const length = sharding.shard_axis == ShardAxis::column ? format.outputs() : format.inputs();
      divides_ = divides_ && length % sum == 0;
      units_.push_back(length / sum);
    }
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      auto const own = part < sharding.part_replicas.size() ? sharding.part_replicas[part] : sharding.replicas;
      replicas_.push_back(as_size(std::max(1, own)));
    }
    places_.assign(ranks_, std::vector<std::int64_t>(parts_.size()));
    auto const block = sharding.rank_block > 0 ? as_size(sharding.rank_block) : ranks_;
    for (std::size_t first = 0; first < ranks_; first += block) {
      for (std::size_t part = 0; part < parts_.size(); ++part)
        for (auto rank = first; rank < std::min(first + block, ranks_); ++rank) place(rank, part);
    }
  }

  [[nodiscard]] bool divides() const noexcept { return divides_; }
  [[nodiscard]] std::int64_t total() const noexcept { return total_; }
  /// Returns the rank whose piece is kept: `rank`, or the rank that it replicates.
  [[nodiscard]] std::size_t kept(std::size_t rank, std::size_t part) const {
    return rank / replicas_[part] * replicas_[part];
  }
  [[nodiscard]] std::vector<AxisRange> ranges(std::size_t rank) const {
    std::vector<AxisRange> found;
    std::int64_t from = 0;
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      auto const length = units_[rank] * parts_[part];
      found.push_back({from, length, places_[rank][part]});
      from += length;
    }
    return found;
  }

 private:
  void place(std::size_t rank, std::size_t part) {
    auto const first = kept(rank, part);
    places_[rank][part] = first == rank ? total_ : places_[first][part];
    if (first == rank) total_ += units_[rank] * parts_[part];
  }

  std::vector<std::int64_t> parts_;
  std::size_t ranks_;
  std::vector<std::int64_t> units_{};
  std::vector<std::size_t> replicas_{};
  std::vector<std::vector<std::int64_t>> places_{};  ///< by rank and part
  std::int64_t total_ = 0;
  bool divides_ = true;
};

/// Returns the number of dimensions before those of the matrix: 1 for a stack of experts, else 0.
int stack_of(Shape const& shape) { return static_cast<int>(shape.size()) - 2; }

ShardBlocks blocks_of(LayerOnRanks const& layer, LayerValues const& values, LayerSharding const& sharding,
                      Layout const& layout, std::size_t rank) {
  auto const& format = layer.formats[rank];
  auto const& scale = *values.layers[rank][TensorRole::weight_scale];
  auto const& shape = values.layers[rank][TensorRole::weight]->shape;
  auto const axes = format.axes(TensorRole::weight_scale, scale);
  auto const of_weight = format.axes(TensorRole::weight, *values.layers[rank][TensorRole::weight]);
  auto const stack = stack_of(shape);
  bool const outputs_first = of_weight.out == stack;
  ShardBlocks shard;
  shard.grid = {.rows = at_axis(shape, stack),
                .columns = shape[as_size(stack) + 1],
                .block_rows = outputs_first ? axes.out_unit : axes.in_unit,
                .block_columns = outputs_first ? axes.in_unit : axes.out_unit,
                .scales = read_scales(values.stored(rank, TensorRole::weight_scale)),
                .matrices = stack == 1 ? shape[0] : 1};
  shard.axis = (sharding.shard_axis == ShardAxis::column ? of_weight.out : of_weight.in) - stack;
  shard.ranges = layout.ranges(rank);
  for (auto const value : shard.grid.scales) {
    if (std::isfinite(value) && value >= 0) continue;
    refuse_scale(layer, rank, value, "finite numbers", "merge the unquantized weights and quantize again");
  }
  return shard;
}

/// Checks that replicas have equal scales. Replicas are compared by their bytes, which need equal scales to be equal
/// values.
void require_equal_scales(LayerOnRanks const& layer, std::vector<ShardBlocks> const& shards, Layout const& layout) {
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    for (std::size_t part = 0; part < shards[rank].ranges.size(); ++part) {
      auto const& own = shards[rank];
      auto const& kept = shards[layout.kept(rank, part)];
      auto const& range = own.ranges[part];
      auto const others = own.axis == 0 ? own.grid.columns : own.grid.rows;
      for (std::int64_t matrix = 0; matrix < own.grid.matrices; ++matrix) {
        for (auto along = range.from; along < range.from + range.length; ++along) {
          for (std::int64_t across = 0; across < others;
               across += own.axis == 0 ? own.grid.block_columns : own.grid.block_rows) {
            auto const row = own.axis == 0 ? along : across;
            auto const column = own.axis == 0 ? across : along;
            if (own.grid.scale(matrix, row, column) == kept.grid.scale(matrix, row, column)) continue;
            refuse_scale(layer, rank, own.grid.scale(matrix, row, column),
                         "the scale of the same piece on rank " + std::to_string(layout.kept(rank, part)),
                         "merge the unquantized weights and quantize again");
          }
        }
      }
    }
  }
}

/// Returns the scales in the dtype of the shards. Each is the scale of a shard, so no scale is rounded.
std::vector<std::byte> encode(std::vector<float> const& scales, Dtype dtype) {
  std::vector<std::byte> bytes(scales.size() * bits_of(dtype) / 8);
  if (dtype == Dtype::f32) {
    std::memcpy(bytes.data(), scales.data(), bytes.size());
  } else {
    encode_small_floats(dtype, scales, bytes, Overflow::saturate);
  }
  return bytes;
}

MergeRule precomputed_scales(LayerOnRanks const& layer, BlockGrid const& whole) {
  // The dimensions of the shards: possibly a stack, possibly a dimension of length 1 after each grid dimension.
  auto const dimensions = layer.tensors.front()->shape.size();
  std::vector<std::int64_t> lengths;
  if (dimensions % 2 != 0) lengths.push_back(whole.matrices);
  for (auto const length : {whole.grid_rows(), whole.grid_columns()}) {
    lengths.push_back(length);
    if (dimensions > 3) lengths.push_back(1);
  }
  return {.kind = UsePrecomputed{.shape = Shape(lengths), .bytes = encode(whole.scales, layer.tensors.front()->dtype)}};
}

/// Returns the rule for the weight; its bytes do not change if no scale does.
MergeRule merged_weight(LayerOnRanks const& layer, LayerValues const& values, LayerSharding const& sharding,
                        std::vector<ShardBlocks> shards, std::shared_ptr<BlockGrid const> const& whole, bool exact) {
  Concatenate concat{.axis = shards.front().axis + stack_of(layer.tensors.front()->shape),
                     .parts = sharding.parts,
                     .replicas = sharding.replicas,
                     .part_replicas = sharding.part_replicas,
                     .rank_block = sharding.rank_block};
  if (exact) return {.kind = std::move(concat)};
  std::vector<Requantization::Shard> changes;
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    Requantization::Shard change;
    change.own = values.stored(rank, TensorRole::weight);
    change.blocks = std::make_shared<BlockRescale const>(layer.tensors[rank]->dtype, std::move(shards[rank]), whole);
    changes.push_back(std::move(change));
  }
  concat.requantization =
      std::make_shared<Requantization const>(RequantizeKernel::block_f8, concat.axis, std::move(changes));
  return {.kind = std::move(concat)};
}

}  // namespace

bool splits_blocks(LayerOnRanks const& layer, LayerSharding const& sharding) {
  bool const asked = layer.role == TensorRole::weight || layer.role == TensorRole::weight_scale;
  auto const dtype = layer.tensors.front()->dtype;
  auto const dimensions = layer.tensors.front()->shape.size();
  if (!asked || layer.formats.size() < 2 ||
      (sharding.shard_axis != ShardAxis::column && sharding.shard_axis != ShardAxis::row))
    return false;
  // The scales of blocks may have twice as many dimensions as the matrix.
  auto const max = layer.role == TensorRole::weight ? 3U : 5U;
  if (layer.formats.front().format() != NumberFormat::fp8_block || dimensions < 2 || dimensions > max) return false;
  if (layer.role == TensorRole::weight_scale && dtype != Dtype::f32 && !is_small_float(dtype)) return false;
  if (sharding.true_outputs >= 0) return false;
  Layout const layout(layer, sharding);
  if (!layout.divides()) return false;
  auto const unit =
      sharding.shard_axis == ShardAxis::column ? layer.formats.front().block_outputs() : layer.formats.front().group();
  bool split = false;
  for (std::size_t rank = 0; rank < layer.formats.size(); ++rank) {
    for (auto const& range : layout.ranges(rank))
      split = split || (range.length % unit != 0 && range.to + range.length != layout.total());
  }
  return split;
}

std::optional<MergeRule> merge_blocks(LayerOnRanks const& layer, LayerValues const& values,
                                      LayerSharding const& sharding, ScalePolicy policy) {
  Layout const layout(layer, sharding);
  std::vector<ShardBlocks> shards;
  for (std::size_t rank = 0; rank < layer.formats.size(); ++rank)
    shards.push_back(blocks_of(layer, values, sharding, layout, rank));
  require_equal_scales(layer, shards, layout);
  auto whole = std::make_shared<BlockGrid>(shards.front().grid);
  (shards.front().axis == 0 ? whole->rows : whole->columns) = layout.total();
  merge_scales(*whole, shards);
  bool const exact =
      std::all_of(shards.begin(), shards.end(), [&](auto const& shard) { return keeps_scales(shard, *whole); });
  if (!exact && policy == ScalePolicy::exact) return std::nullopt;
  auto rule = layer.role == TensorRole::weight_scale
                  ? precomputed_scales(layer, *whole)
                  : merged_weight(layer, values, sharding, std::move(shards), whole, exact);
  rule.reason = std::string(to_string(sharding.shard_axis)) + "-parallel, FP8 per block: " + sharding.why +
                "; shard boundaries fall inside blocks, " +
                (exact ? "whose scales agree" : "which take the largest scale of those that meet in them");
  return rule;
}

}  // namespace crossrank::checkpoint
