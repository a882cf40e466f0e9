#pragma once
#include <memory>
#include <vector>

#include "workspace/checkpoint/quantization/requantize.hpp"
#include "workspace/checkpoint/rules/compose_rule.hpp"

namespace crossrank::checkpoint {

/// All tensors of a layer on the ranks that have it, readable.
struct LayerValues {
  std::vector<LayerTensors> layers{};                         ///< one per rank
  std::vector<std::shared_ptr<ShardSource const>> sources{};  ///< likewise

  /// Where a rank's file holds a tensor of the layer, which it has.
  [[nodiscard]] StoredTensor stored(std::size_t rank, TensorRole role) const;
};

/// `FormatError` about a rank's scale by which nothing can be scaled.
[[noreturn]] void refuse_scale(LayerOnRanks const& layer, std::size_t rank, float value, std::string expected,
                               std::string hint);

/// Completes a rule where values decide: whether group ids count from 0 in each shard, and, unless the policy is
/// `exact`, whether the ranks' scales differ and what becomes of what they multiply.
///
/// `FormatError` for group ids that do not follow the inputs (activation order), errors of the sources.
void resolve_values(MergeRule& rule, LayerOnRanks const& layer, LayerValues const& values,
                    LayerSharding const& sharding, ScalePolicy policy);

}  // namespace crossrank::checkpoint
