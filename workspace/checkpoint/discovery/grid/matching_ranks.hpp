#pragma once
#include <string>
#include <vector>

#include "workspace/checkpoint/source/shard_names.hpp"
#include "workspace/checkpoint/source/shard_set.hpp"

namespace crossrank::checkpoint {

/// Compares the metadata of the files with the ranks in their names. Expects a set with places.
///
/// Throws `FormatError` if name and metadata of a file give different ranks, if two files are of one rank or of
/// different jobs, or if ranks are missing.
void require_matching_ranks(ShardSet const& set, std::vector<NamedShard> const& shards, std::string const& where);

}  // namespace crossrank::checkpoint
