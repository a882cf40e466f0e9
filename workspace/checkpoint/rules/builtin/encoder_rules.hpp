#pragma once
#include <vector>

#include "workspace/checkpoint/rules/layer_rule.hpp"

namespace crossrank::checkpoint {

/// Layers of encoders, and of decoders that look at one: the names of BERT, T5 and BART.
[[nodiscard]] std::vector<LayerRule> encoder_rules();

}  // namespace crossrank::checkpoint
