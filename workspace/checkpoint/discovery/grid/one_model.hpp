#pragma once
#include "workspace/checkpoint/discovery/shard_set.hpp"

namespace crossrank::checkpoint {

/// Looks for what shards of one model cannot have: tensor-parallel ranks that share no name, norms of different widths.
/// `FormatError` that names two files. Reads nothing.
void require_one_model(ShardSet const& set);

}  // namespace crossrank::checkpoint
