#pragma once
#include "workspace/checkpoint/source/shard_set.hpp"

namespace crossrank::checkpoint {

/// Throws `FormatError`, with the names of two files, if the shards cannot be of one model: tensor-parallel ranks that
/// share no tensor name, or norms of different widths. Reads no data.
void require_one_model(ShardSet const& set);

}  // namespace crossrank::checkpoint
