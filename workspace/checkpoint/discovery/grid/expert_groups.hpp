#pragma once
#include <optional>

#include "workspace/checkpoint/source/shard_set.hpp"
#include "workspace/checkpoint/discovery/grid/shard_grid.hpp"

namespace crossrank::checkpoint {

/// Interprets places as those of Megatron's parallel folding, which spreads experts over the ranks in another way than
/// the other layers.
///
/// With folding, each rank has a tensor-parallel number for the other layers and an expert-parallel number for the
/// experts, and not every pair of numbers exists. The result has the tensor-parallel ranks of `grid`, each with a group
/// of experts. Returns nothing if the places do not match this scheme.
[[nodiscard]] std::optional<ShardGrid> fold_experts(ShardGrid const& grid);

/// Finds the groups of experts among the tensor-parallel ranks of a set. With such groups, as in vLLM, each rank holds
/// some experts and a piece of everything else.
///
/// `announced` is the number of groups in options or config, or 0. Uses only names and shapes.
void find_expert_groups(ShardSet& set, int announced);

}  // namespace crossrank::checkpoint
