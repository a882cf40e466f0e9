#pragma once
#include <vector>

#include "workspace/checkpoint/rules/layer_rule.hpp"

namespace crossrank::checkpoint {

/// Rules for state-space layers, linear attention and short convolutions, which hybrid models have in the place of
/// attention. Shards may hold them cut; who cuts a model leaves them whole, as states of one group belong to many
/// heads.
[[nodiscard]] std::vector<LayerRule> mixer_rules();

}  // namespace crossrank::checkpoint
