#include "workspace/checkpoint/fp8_blocks.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/small_float.hpp"
#include "workspace/checkpoint/block_rescale.hpp"
#include "workspace/checkpoint/requantize.hpp"

namespace crossrank::checkpoint {
namespace {

std::vector<std::int64_t> parts_of(LayerCut const& cut) {
  return cut.parts.empty() ? std::vector<std::int64_t>{1} : cut.parts;
}

std::int64_t length_on(LayerOnRanks const& layer, LayerCut const& cut, std::size_t rank) {
  return cut.cut == Cut::column ? layer.formats[rank].outputs() : layer.formats[rank].inputs();
}

std::int64_t total_length(LayerOnRanks const& layer, LayerCut const& cut) {
  std::int64_t total = 0;
  for (std::size_t rank = 0; rank < layer.formats.size(); ++rank) total += length_on(layer, cut, rank);
  return total;
}

/// Where the parts of one rank's shard go: all first parts come first.
std::vector<Stretch> stretches_of(LayerOnRanks const& layer, LayerCut const& cut, std::size_t rank) {
  auto const parts = parts_of(cut);
  auto const sum = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  std::vector<Stretch> stretches;
  std::int64_t from = 0;
  std::int64_t base = 0;
  for (auto const part : parts) {
    std::int64_t before = 0;
    std::int64_t all = 0;
    for (std::size_t other = 0; other < layer.formats.size(); ++other) {
      auto const piece = length_on(layer, cut, other) / sum * part;
      all += piece;
      if (other < rank) before += piece;
    }
    auto const length = length_on(layer, cut, rank) / sum * part;
    stretches.push_back({from, length, base + before});
    from += length;
    base += all;
  }
  return stretches;
}

ShardBlocks blocks_of(LayerOnRanks const& layer, LayerValues const& values, LayerCut const& cut, std::size_t rank) {
  auto const& format = layer.formats[rank];
  auto const axes = format.axes(TensorRole::weight_scale, *values.layers[rank][TensorRole::weight_scale]);
  ShardBlocks shard;
  shard.grid = {format.outputs(), format.inputs(), axes.out_unit, axes.in_unit,
                read_scales(values.stored(rank, TensorRole::weight_scale))};
  shard.axis = cut.cut == Cut::column ? 0 : 1;
  shard.stretches = stretches_of(layer, cut, rank);
  for (auto const scale : shard.grid.scales) {
    if (std::isfinite(scale) && scale >= 0) continue;
    refuse_scale(layer, rank, scale, "finite numbers", "merge the unquantized weights and quantize again");
  }
  return shard;
}

/// Scales as the shards store theirs. Each is one of the shards', so that nothing is rounded.
std::vector<std::byte> encode(std::vector<float> const& scales, Dtype dtype) {
  std::vector<std::byte> bytes(scales.size() * bits_of(dtype) / 8);
  if (dtype == Dtype::f32) {
    std::memcpy(bytes.data(), scales.data(), bytes.size());
  } else {
    encode_small_floats(dtype, scales, bytes, Overflow::saturate);
  }
  return bytes;
}

MergeRule given_scales(LayerOnRanks const& layer, BlockGrid const& whole) {
  auto values = std::make_shared<GivenValues>();
  values->shape = Shape{whole.grid_rows(), whole.grid_columns()};
  values->bytes = encode(whole.scales, layer.tensors.front()->dtype);
  return {.kind = MergeKind::given, .given = std::move(values)};
}

}  // namespace

bool splits_blocks(LayerOnRanks const& layer, LayerCut const& cut) {
  bool const asked = layer.role == TensorRole::weight || layer.role == TensorRole::weight_scale;
  auto const dtype = layer.tensors.front()->dtype;
  if (!asked || layer.formats.size() < 2 || (cut.cut != Cut::column && cut.cut != Cut::row)) return false;
  if (layer.formats.front().format() != NumberFormat::fp8_block || layer.tensors.front()->shape.size() != 2)
    return false;
  if (layer.role == TensorRole::weight_scale && dtype != Dtype::f32 && !is_small_float(dtype)) return false;
  if (cut.replicas != 1 || !cut.part_replicas.empty() || cut.rank_block != 0 || cut.true_outputs >= 0) return false;
  auto const parts = parts_of(cut);
  auto const sum = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  auto const unit = cut.cut == Cut::column ? layer.formats.front().block_outputs() : layer.formats.front().group();
  auto const total = total_length(layer, cut);
  bool split = false;
  for (std::size_t rank = 0; rank < layer.formats.size(); ++rank) {
    if (length_on(layer, cut, rank) % sum != 0) return false;
    for (auto const& stretch : stretches_of(layer, cut, rank))
      split = split || (stretch.length % unit != 0 && stretch.to + stretch.length != total);
  }
  return split;
}

MergeRule join_blocks(LayerOnRanks const& layer, LayerValues const& values, LayerCut const& cut) {
  bool const column = cut.cut == Cut::column;
  std::vector<ShardBlocks> shards;
  for (std::size_t rank = 0; rank < layer.formats.size(); ++rank) shards.push_back(blocks_of(layer, values, cut, rank));
  auto whole = std::make_shared<BlockGrid>(shards.front().grid);
  (column ? whole->rows : whole->columns) = total_length(layer, cut);
  join_scales(*whole, shards);
  MergeRule rule;
  if (layer.role == TensorRole::weight_scale) {
    rule = given_scales(layer, *whole);
  } else {
    std::vector<Requantization::Shard> changes;
    for (std::size_t rank = 0; rank < shards.size(); ++rank) {
      Requantization::Shard change;
      change.own = values.stored(rank, TensorRole::weight);
      change.blocks = std::make_shared<BlockRescale const>(layer.tensors[rank]->dtype, std::move(shards[rank]), whole);
      changes.push_back(std::move(change));
    }
    rule = {.kind = MergeKind::requantize, .axis = column ? 0 : 1, .parts = cut.parts};
    rule.requantization =
        std::make_shared<Requantization const>(RequantizeKernel::block_f8, rule.axis, std::move(changes));
  }
  rule.reason = std::string(to_string(cut.cut)) + "-parallel, FP8 per block: " + cut.why +
                "; seams fall inside blocks, which take the largest scale of those that meet in them";
  return rule;
}

}  // namespace crossrank::checkpoint
