#pragma once
#include <string>
#include <vector>

#include "workspace/checkpoint/source/shard_names.hpp"
#include "workspace/checkpoint/source/shard_set.hpp"

namespace crossrank::checkpoint {

/// The sizes of the grid and the place of each shard.
struct ShardGrid {
  int tp = 1;
  int pp = 1;
  int ep = 1;
  int moe_ep = 1;                    ///< groups of experts among the tensor-parallel ranks, if the names show them
  std::vector<ShardPlace> places{};  ///< one per shard, in the order of the shards
};

/// Sizes of the grid from options or, failing that, from the config; 0 if unknown.
struct AnnouncedGrid {
  int tp = 0;
  int pp = 0;
  int ep = 0;
  int moe_ep = 0;  ///< groups of experts among the tensor-parallel ranks
};

/// Returns the sizes in config.json: "mapping" of TensorRT-LLM, or sizes under their usual names.
[[nodiscard]] AnnouncedGrid announced_grid(Json const& config);

/// Places shards in the grid by their names.
///
/// Throws `FormatError` with the missing or repeated rank, and `UsageError` if sizes contradict each other.
[[nodiscard]] ShardGrid place_shards(std::vector<NamedShard> const& shards, AnnouncedGrid announced,
                                     std::string const& where);

}  // namespace crossrank::checkpoint
