#pragma once
#include "workspace/checkpoint/discovery/grid/shard_grid.hpp"

namespace crossrank::checkpoint {

/// Splits the ranks of a grid that is known as tensor-parallel only into stages or expert groups, where the names of
/// the tensors and the config tell: ranks in blocks with different names whose layers go on from one to the next, or
/// experts that are fewer on each rank than in the config. What tells nothing stays as it is.
void refine_grid(ShardSet& set, AnnouncedGrid announced);

}  // namespace crossrank::checkpoint
