#pragma once
#include <vector>

#include "workspace/checkpoint/rules/layer_rule.hpp"

namespace crossrank::checkpoint {

/// Returns the rules for state-space layers, linear attention and short convolutions, which hybrid models use instead
/// of attention. A merge accepts them sharded; a split leaves them whole, because the states of one group belong to
/// many heads.
[[nodiscard]] std::vector<LayerRule> mixer_rules();

}  // namespace crossrank::checkpoint
