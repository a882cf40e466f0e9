#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "workspace/checkpoint/rules/compose_rule.hpp"

namespace crossrank::checkpoint {

/// What a fused layer is taken apart into.
struct FusedParts {
  std::vector<std::string> modules{};  ///< names of the layers, in the order of the parts
  std::vector<std::int64_t> widths{};  ///< outputs of each in the whole model
};

/// Takes apart the rule for one tensor of a fused layer: the parts become tensors of layers of their own. What follows
/// the outputs is cut, what all outputs share is there for each of them, an original shape is made anew.
///
/// `suffix` is the tensor's, behind the name of its layer. `FormatError` where parts share a scale or a byte.
[[nodiscard]] MergeRule unfuse(MergeRule const& fused, LayerOnRanks const& layer, LayerSharding const& sharding,
                               FusedParts const& parts, std::string_view suffix);

}  // namespace crossrank::checkpoint
