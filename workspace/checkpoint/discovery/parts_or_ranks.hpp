#pragma once
#include <vector>

#include "workspace/checkpoint/discovery/shard_listing.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"

namespace crossrank::checkpoint {

/// Decides whether files named "x of y" are parts of one shard or shards of y ranks, and in the latter case replaces
/// the one shard by y shards.
///
/// Files of ranks have most tensor names in common. Opens two files. Throws `IoError`, and `FormatError` if the first
/// two have only some names in common.
void distinguish_parts_from_ranks(std::vector<ShardFiles>& shards, TorchSourceOptions const& options);

}  // namespace crossrank::checkpoint
