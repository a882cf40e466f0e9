#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "workspace/checkpoint/rules/scales/resolve_values.hpp"

namespace crossrank::checkpoint {

/// Completes the rule for an original shape (`weight_shape` of compressed-tensors). The ranks hold either the shapes of
/// their shards, whose lengths are added, or the shape of the whole layer, which is kept. A layer that loses padding
/// gets its own shape.
///
/// `FormatError` when a rank's shape fits its packed weight in neither way. Reads two integers per rank.
void resolve_weight_shape(MergeRule& rule, LayerOnRanks const& layer, LayerValues const& values,
                          LayerSharding const& sharding);

/// Returns the rule for an original shape in the dtype of the shards. `FormatError` unless they hold integers.
[[nodiscard]] MergeRule computed_weight_shape(LayerOnRanks const& layer, std::int64_t outputs, std::int64_t inputs);

/// Compares the original shapes in a source of whole layers with their packed weights. Reads two integers per packed
/// layer; other checks report data that cannot be read.
[[nodiscard]] std::vector<Defect> check_weight_shapes(std::shared_ptr<ShardSource const> const& source,
                                                      QuantizationHints const& hints);

}  // namespace crossrank::checkpoint
