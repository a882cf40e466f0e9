#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "workspace/checkpoint/rules/compose_rule.hpp"

namespace crossrank::checkpoint {

/// The layers that a fused layer is split into.
struct FusedParts {
  std::vector<std::string> modules{};  ///< names of the layers, in the order of the parts
  std::vector<std::int64_t> widths{};  ///< outputs of each
  bool exact = true;                   ///< the widths are those in the whole model; else they are relative
  bool grouped = false;                ///< the parts repeat, and the widths are those in one group
};

/// Splits the rule for one tensor of a fused layer into rules for its parts, which become separate tensors. Dimensions
/// along the outputs are split, values that all outputs share are repeated, and an original shape is computed again.
///
/// `suffix` follows the name of the layer in the tensor's name. `FormatError` when parts share a scale or a byte.
[[nodiscard]] MergeRule unfuse(MergeRule const& fused, LayerOnRanks const& layer, LayerSharding const& sharding,
                               FusedParts const& parts, std::string_view suffix);

}  // namespace crossrank::checkpoint
