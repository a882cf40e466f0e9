#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "workspace/checkpoint/rules/layer_sharding.hpp"
#include "workspace/checkpoint/rules/merge_rule.hpp"
#include "workspace/checkpoint/quantization/number_format.hpp"

namespace crossrank::checkpoint {

/// A layer on the ranks that have it, and the role of one of its tensors.
struct LayerOnRanks {
  std::string_view module{};
  TensorRole role = TensorRole::weight;
  std::vector<SourceTensor const*> tensors{};  ///< the tensor of that role, one per rank
  std::vector<LayerFormat> formats{};          ///< one per rank
  LayerHints hints{};
};

/// Returns the rule for one tensor of a layer that is sharded as `sharding` describes: the dimension and its units.
///
/// `FormatError` when a shard boundary splits a byte, a word or values that share a scale, when the ranks' shapes or
/// dtypes contradict each other, or when group ids do not follow the inputs.
[[nodiscard]] MergeRule compose_rule(LayerOnRanks const& layer, LayerSharding const& sharding);

/// Checks that dtypes agree, and shapes in all dimensions except `except_axis`. `FormatError` names the first rank that
/// differs.
void require_same_shape_and_dtype(std::span<SourceTensor const* const> tensors, std::optional<int> except_axis = {});

}  // namespace crossrank::checkpoint
