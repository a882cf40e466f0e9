#pragma once
#include <optional>

#include "workspace/checkpoint/discovery/shard_set.hpp"
#include "workspace/checkpoint/discovery/grid/shard_grid.hpp"

namespace crossrank::checkpoint {

/// Reads places as those of a job whose experts are spread over its ranks in another way than its other layers
/// (Megatron's parallel folding): each rank has a tensor-parallel number for the one and an expert-parallel number for
/// the other, and not every pair of them is there. The result has the tensor-parallel ranks of `grid`, each with a
/// group of experts. Nothing where the places are not such.
[[nodiscard]] std::optional<ShardGrid> fold_experts(ShardGrid const& grid);

/// Finds the groups of experts that the tensor-parallel ranks of a set hold: as vLLM spreads them, each rank holds some
/// experts and a piece of everything else. `announced` is their number as options and config have it, 0 where they say
/// nothing. Looks at names and shapes only.
void find_expert_groups(ShardSet& set, int announced);

}  // namespace crossrank::checkpoint
