#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/json.hpp>

#include "lib/codec/safetensors/header_parser.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// The rank metadata in the header of a file. `split` and `save_sharded` write it, and state images have it.
struct ShardMetadata {
  int rank = 0;
  int count = 1;       ///< number of ranks
  std::string job{};   ///< id of the job that wrote all shards; empty for state images
  bool saved = false;  ///< by `save_sharded`, so that the layout of fused layers is the program's own
};

/// Name of the source attribute that holds the metadata.
inline constexpr char const* shard_metadata_key = "__shard__";

/// Converts the metadata to entries of a safetensors header.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> to_header_metadata(ShardMetadata const& note);
/// Returns the metadata in a header as the attribute of its source; null if there is none.
[[nodiscard]] Json shard_metadata_in(codec::Header const& header);

/// Returns the shard metadata of a source, or nothing if it has none.
[[nodiscard]] std::optional<ShardMetadata> shard_metadata_of(ShardSource const& source);

}  // namespace crossrank::checkpoint
