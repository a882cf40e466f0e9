#pragma once
#include <memory>
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "workspace/checkpoint/rules/scales/resolve_values.hpp"

namespace crossrank::checkpoint {

/// Completes the rule for an original shape (`weight_shape` of compressed-tensors): the ranks hold either the shape of
/// their own shard, whose lengths add up, or all of them the shape of the whole layer, which stays as it is.
///
/// `FormatError` when a rank's shape is neither, compared with its packed weight. Reads two integers per rank.
void resolve_weight_shape(MergeRule& rule, LayerOnRanks const& layer, LayerValues const& values,
                          LayerSharding const& sharding);

/// Compares the original shapes in a source that holds whole layers with their packed weights. Reads two integers per
/// packed layer; what cannot be read is left to other checks.
[[nodiscard]] std::vector<Defect> check_weight_shapes(std::shared_ptr<ShardSource const> const& source,
                                                      QuantizationHints const& hints);

}  // namespace crossrank::checkpoint
