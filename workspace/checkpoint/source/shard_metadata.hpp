#pragma once
#include <string>
#include <utility>
#include <vector>

#include <crossrank/json.hpp>

#include "lib/codec/safetensors/header_parser.hpp"
#include "workspace/checkpoint/discovery/shard_set.hpp"
#include "workspace/checkpoint/discovery/grid/shard_grid.hpp"

namespace crossrank::checkpoint {

/// The rank metadata in the header of a file. `split` writes it, and state images have it.
struct ShardMetadata {
  int rank = 0;
  int count = 1;      ///< number of ranks
  std::string job{};  ///< id of the split; empty for state images
};

/// Name of the source attribute that holds the metadata.
inline constexpr char const* shard_metadata_key = "__shard__";

/// Converts the metadata to entries of a safetensors header.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> to_header_metadata(ShardMetadata const& note);
/// Returns the metadata in a header as the attribute of its source; null if there is none.
[[nodiscard]] Json shard_metadata_in(codec::Header const& header);

/// Compares the metadata of the files with the ranks in their names. Expects a set with places.
///
/// Throws `FormatError` if name and metadata of a file give different ranks, if two files are of one rank or of
/// different splits, or if ranks are missing.
void require_matching_ranks(ShardSet const& set, std::vector<NamedShard> const& shards, std::string const& where);

}  // namespace crossrank::checkpoint
