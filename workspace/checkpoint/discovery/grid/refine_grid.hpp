#pragma once
#include "workspace/checkpoint/discovery/grid/shard_grid.hpp"

namespace crossrank::checkpoint {

/// Splits a grid of only tensor-parallel ranks into pipeline stages or expert-parallel ranks, if tensor names and
/// config show them.
///
/// Stages are blocks of ranks whose layers continue from one block to the next. Expert-parallel ranks have fewer
/// experts than the config. Leaves all other grids unchanged.
void refine_grid(ShardSet& set, AnnouncedGrid announced);

}  // namespace crossrank::checkpoint
