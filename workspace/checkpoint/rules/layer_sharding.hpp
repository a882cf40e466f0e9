#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "workspace/checkpoint/rules/layer_rule.hpp"
#include "workspace/checkpoint/model/model_sizes.hpp"

namespace crossrank::checkpoint {

/// The dimension along which the shards of a layer differ.
enum class ShardAxis : std::uint8_t {
  replicate,  ///< none: every rank has all of it
  column,     ///< the outputs
  row,        ///< the inputs
};

/// Returns the name of a shard axis, for messages.
[[nodiscard]] std::string_view to_string(ShardAxis shard_axis) noexcept;

/// How one layer is sharded over the ranks, in numbers along its outputs and inputs.
struct LayerSharding {
  ShardAxis shard_axis = ShardAxis::replicate;
  std::vector<std::int64_t> parts{};  ///< relative widths of fused parts in one shard; empty: one part
  std::vector<int> part_replicas{};   ///< number of neighbouring ranks with the same piece, per part; empty: `replicas`
  int replicas = 1;                   ///< the same for all parts
  int rank_block = 0;                 ///< number of neighbouring ranks that form a block; 0: all ranks
  std::int64_t true_outputs = -1;     ///< outputs without padding; -1: all are real
  bool unproven = false;              ///< only the name says that the shards are pieces, no size does
  std::string why{};                  ///< the proof in words
};

/// The layer's lengths on each rank, in numbers instead of stored elements.
struct ShardingQuery {
  std::string_view module{};
  std::span<std::int64_t const> outputs{};  ///< one per rank
  std::span<std::int64_t const> inputs{};   ///< one per rank; zeros for vectors
  bool has_weight = true;                   ///< else the lengths are those of a bias, or 0
};

/// Compares the lengths of the shards with the lengths in rule and config. Lengths that add up prove that the layer is
/// sharded. A layer that every rank has whole is replicated even if the rule shards it.
///
/// `FormatError` when the lengths fit neither case; it proposes rules, unless the layer has no weight.
[[nodiscard]] LayerSharding decide_sharding(ShardingQuery const& query, LayerRule const& rule, ModelSizes const& sizes);

}  // namespace crossrank::checkpoint
