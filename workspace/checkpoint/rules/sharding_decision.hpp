#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "workspace/checkpoint/rules/layer_rule.hpp"
#include "workspace/checkpoint/model/model_sizes.hpp"

namespace crossrank::checkpoint {

/// How one layer is really cut over the ranks, in numbers along its outputs and inputs.
struct LayerSharding {
  ShardAxis shard_axis = ShardAxis::replicate;  ///< replicate, column or row
  std::vector<std::int64_t> parts{};            ///< relative widths of fused pieces in one shard; empty: one piece
  std::vector<int> part_replicas{};             ///< neighbouring ranks with the same piece, per part; empty: `replicas`
  int replicas = 1;                             ///< the same for all parts
  int rank_block = 0;                           ///< so many neighbouring ranks are joined by themselves; 0: all at once
  std::int64_t true_outputs = -1;               ///< outputs without padding; -1: all are real
  bool unproven = false;                        ///< no size says that the shards are pieces, only the name does
  std::string why{};                            ///< what proves it, in words
};

/// What is asked of `decide_sharding`: the layer's lengths on each rank, in numbers, not in stored elements.
struct ShardingQuery {
  std::string_view module{};
  std::span<std::int64_t const> outputs{};  ///< one per rank
  std::span<std::int64_t const> inputs{};   ///< one per rank; zeros for vectors
};

/// Compares the lengths of the shards with those that rule and config name. Cutting is proven by sizes that add up; a
/// layer that every rank has whole is replicated whatever the rule says.
///
/// `FormatError` when the lengths fit neither, with rules that would resolve it.
[[nodiscard]] LayerSharding decide_sharding(ShardingQuery const& question, LayerRule const& rule,
                                            ModelSizes const& sizes);

/// Whether a part has a piece for each key/value head, so that ranks may share one.
[[nodiscard]] bool is_of_kv_heads(RuleSize const& size);

/// The length that a rule names; nothing when the config does not say.
[[nodiscard]] std::optional<std::int64_t> resolve(RuleSize const& size, ModelSizes const& sizes);

}  // namespace crossrank::checkpoint
