#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "workspace/checkpoint/rules/sharding_decision.hpp"
#include "workspace/checkpoint/rules/merge_rule.hpp"
#include "workspace/checkpoint/quantization/number_format.hpp"

namespace crossrank::checkpoint {

/// One layer on the ranks that have it, and the tensor of it that is asked about.
struct LayerOnRanks {
  std::string_view module{};
  TensorRole role = TensorRole::weight;
  std::vector<SourceTensor const*> tensors{};  ///< of the role, one per rank
  std::vector<LayerFormat> formats{};          ///< one per rank
  LayerHints hints{};
};

/// The rule for one tensor of a layer that is cut as `cut` says: which dimension follows the cut, in which units.
///
/// `FormatError` when the cut falls inside what shares a byte, a word or a scale, when the ranks' shapes or dtypes
/// contradict each other, and for group ids that do not follow the inputs.
[[nodiscard]] MergeRule compose_rule(LayerOnRanks const& layer, LayerSharding const& sharding);

/// Checks that dtypes agree, and shapes in all dimensions but `axis` (-1: in all). `FormatError` names the first that
/// does not.
void require_same_shape_and_dtype(std::span<SourceTensor const* const> tensors, int axis);

}  // namespace crossrank::checkpoint
