#pragma once
#include <optional>

#include "workspace/checkpoint/rules/compose_rule.hpp"
#include "workspace/checkpoint/rules/scales/resolve_values.hpp"

namespace crossrank::checkpoint {

/// Whether a shard boundary between shards falls inside a block of F8 values that share a scale, so that the tensor
/// asked about, weight or scale, can only be joined by computing it anew.
[[nodiscard]] bool splits_blocks(LayerOnRanks const& layer, LayerSharding const& sharding);

/// The rule for such a tensor: blocks of the joined matrix take the largest scale of those that meet in them, and
/// values are rounded to it; where the scales that meet agree, nothing is. Nothing where they do not and the policy is
/// exact. Reads the scales. `FormatError` for scales that are no finite numbers, and for copies under other scales.
[[nodiscard]] std::optional<MergeRule> merge_blocks(LayerOnRanks const& layer, LayerValues const& values,
                                                    LayerSharding const& sharding, ScalePolicy policy);

}  // namespace crossrank::checkpoint
