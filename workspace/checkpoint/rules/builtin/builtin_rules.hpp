#pragma once
#include <vector>

#include "workspace/checkpoint/rules/layer_rule.hpp"

namespace crossrank::checkpoint {

/// The rules for names of Hugging Face, Megatron and TensorRT-LLM models; the first that matches a layer holds.
///
/// They say how a layer is cut when it is cut. Whether it is, shapes and config tell. A rule for stacked experts
/// holds only where the weight has three dimensions or more.
[[nodiscard]] std::vector<LayerRule> builtin_rules();

}  // namespace crossrank::checkpoint
