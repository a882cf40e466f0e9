#pragma once
#include <string>
#include <string_view>

#include "workspace/checkpoint/model/model_names.hpp"
#include "workspace/checkpoint/source/shard_set.hpp"

namespace crossrank::checkpoint {

/// Returns the model's name for a tensor of vLLM's `sharded_state`. vLLM saves a tensor that several of its modules
/// hold once, under the name that comes first in the alphabet: "mlp.experts.gate.weight" is "mlp.gate.weight". Returns
/// other names unchanged.
///
/// Source: `ShardedStateLoader`, `MoERunner` and `MultiHeadLatentAttentionWrapper` of vLLM 0.33.
[[nodiscard]] std::string name_before_vllm(std::string_view name, ModelNames const& model);

/// Gives the tensors of vLLM's shards the names of the model. A tensor keeps its name if another tensor of its shard
/// has the new one.
void rename_from_vllm(ShardSet& set);

}  // namespace crossrank::checkpoint
