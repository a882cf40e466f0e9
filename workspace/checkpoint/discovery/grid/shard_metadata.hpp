#pragma once
#include <string>
#include <utility>
#include <vector>

#include <crossrank/json.hpp>

#include "lib/codec/safetensors/header_parser.hpp"
#include "workspace/checkpoint/discovery/shard_set.hpp"
#include "workspace/checkpoint/discovery/grid/shard_grid.hpp"

namespace crossrank::checkpoint {

/// What the file of a rank says of itself: `split` writes it, and state images have it.
struct ShardMetadata {
  int rank = 0;
  int count = 1;      ///< ranks in all
  std::string job{};  ///< of the split; empty for state images
};

/// The attribute of a source that holds its note.
inline constexpr char const* shard_metadata_key = "__shard__";

/// A note as metadata of a safetensors file.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> to_header_metadata(ShardMetadata const& note);
/// The note in a file's metadata as the attribute of its source; null where there is none.
[[nodiscard]] Json shard_metadata_in(codec::Header const& header);

/// Compares what the files say of themselves with the ranks that their names give them. `FormatError` when a file is of
/// another rank than its name says, when two are of one rank, of different splits, or when ranks are missing. The set
/// has its places.
void require_matching_ranks(ShardSet const& set, std::vector<NamedShard> const& shards, std::string const& where);

}  // namespace crossrank::checkpoint
