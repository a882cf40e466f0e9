#pragma once
#include <vector>

#include "workspace/checkpoint/rules/layer_rule.hpp"

namespace crossrank::checkpoint {

/// Returns the rules for encoders and for decoders with cross-attention, in the names of BERT, T5 and BART.
[[nodiscard]] std::vector<LayerRule> encoder_rules();

}  // namespace crossrank::checkpoint
