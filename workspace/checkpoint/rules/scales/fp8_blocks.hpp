#pragma once
#include <optional>

#include "workspace/checkpoint/rules/compose_rule.hpp"
#include "workspace/checkpoint/rules/scales/resolve_values.hpp"

namespace crossrank::checkpoint {

/// Returns whether a shard boundary splits a block of F8 values that share a scale, so that the tensor, weight or
/// scale, must be computed again.
[[nodiscard]] bool splits_blocks(LayerOnRanks const& layer, LayerSharding const& sharding);

/// Returns the rule for such a tensor. Each block of the merged matrix takes the largest scale of the blocks that meet
/// in it, and the values are rounded to it; values under equal scales do not change. Returns nothing if scales differ
/// and the policy is `exact`. Reads the scales. `FormatError` for scales that are not finite, and for replicas with
/// different scales.
[[nodiscard]] std::optional<MergeRule> merge_blocks(LayerOnRanks const& layer, LayerValues const& values,
                                                    LayerSharding const& sharding, ScalePolicy policy);

}  // namespace crossrank::checkpoint
