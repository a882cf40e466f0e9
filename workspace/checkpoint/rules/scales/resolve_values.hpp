#pragma once
#include <memory>
#include <vector>

#include "workspace/checkpoint/quantization/requantize.hpp"
#include "workspace/checkpoint/rules/compose_rule.hpp"

namespace crossrank::checkpoint {

/// All tensors of a layer on the ranks that have it, with their sources.
struct LayerValues {
  std::vector<LayerTensors> layers{};                         ///< one per rank
  std::vector<std::shared_ptr<ShardSource const>> sources{};  ///< likewise

  /// Returns where a rank holds a tensor of the layer. The rank must have it.
  [[nodiscard]] StoredTensor stored(std::size_t rank, TensorRole role) const;
};

/// Throws a `FormatError` about a scale that is not a positive finite number.
[[noreturn]] void refuse_scale(LayerOnRanks const& layer, std::size_t rank, float value, std::string expected,
                               std::string hint);

/// Completes a rule that depends on stored values: whether group ids start at 0 in each shard and, unless the policy is
/// `exact`, whether the ranks' scales differ, so that the values under them must be requantized.
///
/// `FormatError` for group ids that do not follow the inputs (activation order); errors of the sources.
void resolve_values(MergeRule& rule, LayerOnRanks const& layer, LayerValues const& values,
                    LayerSharding const& sharding, ScalePolicy policy);

}  // namespace crossrank::checkpoint
