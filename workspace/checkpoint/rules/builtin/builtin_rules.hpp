#pragma once
#include <vector>

#include "workspace/checkpoint/rules/layer_rule.hpp"

namespace crossrank::checkpoint {

/// Returns the rules for names of Hugging Face, Megatron and TensorRT-LLM models. The first rule that matches a layer
/// applies.
///
/// The rules give the shard axis of a layer if it is sharded. Shapes and config decide whether it is. A rule for
/// stacked experts applies only to weights of three or more dimensions.
[[nodiscard]] std::vector<LayerRule> builtin_rules();

}  // namespace crossrank::checkpoint
