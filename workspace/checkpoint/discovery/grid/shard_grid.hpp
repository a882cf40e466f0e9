#pragma once
#include <string>
#include <vector>

#include "workspace/checkpoint/discovery/shard_set.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"

namespace crossrank::checkpoint {

/// One input before it is opened: what its name says.
struct NamedShard {
  std::string name{};  ///< for messages
  ShardNumbers numbers{};
};

/// Sizes of the grid and, for each shard, its place and its position in the order (stage, expert rank, tensor rank).
struct ShardGrid {
  int tp = 1;
  int pp = 1;
  int ep = 1;
  int moe_ep = 1;                    ///< groups of experts among the tensor-parallel ranks, where the names tell
  std::vector<ShardPlace> places{};  ///< as the shards were given
};

/// Sizes that something outside the names announces: options first, then the config; 0 where it says nothing.
struct AnnouncedGrid {
  int tp = 0;
  int pp = 0;
  int ep = 0;
  int moe_ep = 0;  ///< groups of experts among the tensor-parallel ranks
};

/// What config.json says of the grid: "mapping" of TensorRT-LLM, or sizes under their usual names.
[[nodiscard]] AnnouncedGrid announced_grid(Json const& config);

/// Places shards by their names. `FormatError` that names the missing or repeated rank; `UsageError` when sizes
/// contradict each other.
[[nodiscard]] ShardGrid place_shards(std::vector<NamedShard> const& shards, AnnouncedGrid announced,
                                     std::string const& where);

}  // namespace crossrank::checkpoint
