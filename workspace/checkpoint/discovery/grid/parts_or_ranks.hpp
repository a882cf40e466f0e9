#pragma once
#include <vector>

#include "workspace/checkpoint/discovery/shard_listing.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"

namespace crossrank::checkpoint {

/// Files called "x of y" are parts of one shard or, where they have tensors in common, shards of y ranks: makes them
/// the latter where they are. Opens two of them. `IoError`, `FormatError`.
void distinguish_parts_from_ranks(std::vector<ShardFiles>& shards, TorchSourceOptions const& options);

}  // namespace crossrank::checkpoint
