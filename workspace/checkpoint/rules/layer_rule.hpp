#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <crossrank/collective.hpp>

#include "workspace/checkpoint/model/model_sizes.hpp"
#include "workspace/checkpoint/model/name_pattern.hpp"

namespace crossrank::checkpoint {

/// The dimension along which a layer is sharded over tensor-parallel ranks.
enum class ShardAxis : std::uint8_t {
  replicate,   ///< every rank has all of it
  column,      ///< along the outputs
  row,         ///< along the inputs
  vocabulary,  ///< along the tokens, possibly padded; or along the hidden width
  reduce,      ///< values that are reduced to one
  drop,        ///< not part of the result
};

/// A length: a number, or the name of a size in the config.
using RuleSize = std::variant<std::int64_t, SizeName>;

/// A rule: the layers it covers, and how they are sharded.
struct LayerRule {
  NamePattern pattern{};
  ShardAxis shard_axis = ShardAxis::replicate;
  std::vector<RuleSize>
      parts{};  ///< full widths of the fused parts along the outputs; a single part is the whole output
  std::optional<RuleSize> inputs{};  ///< full size of the input
  bool grouped = false;  ///< parts alternate per key/value group (q ... q, k, v, q ... q, k, v) instead of per rank
  bool plain = false;    ///< the fused layer is sharded as one block, without regard to its parts
  std::optional<RuleSize> groups{};   ///< grouped: number of groups; default: one per key/value head
  std::optional<SizeName> repeat{};   ///< parts: the number of times that all parts repeat
  bool gate = false;                  ///< one part, or two equal parts if the model has a gated feed-forward layer
  bool stacked = false;               ///< the weight's first dimension counts experts
  bool transposed = false;            ///< the weight is [in, out]
  bool left_whole = false;            ///< a merge accepts such shards, but a split replicates the layer
  std::vector<std::string> models{};  ///< only for these model types; empty: all

  bool whole_name = false;  ///< the pattern matches the whole name of a tensor; `axis` is one of its dimensions
  std::optional<int> axis{};
  int replicas = 0;               ///< number of neighbouring ranks with the same piece; 0: derived from the sizes
  std::int64_t true_size = -1;    ///< as `MergeRule`
  std::int64_t add_per_rank = 0;  ///< as `MergeRule`
  ReduceOp op = ReduceOp::max;
  std::string rename{};   ///< name of the result; each `*` is replaced by a number of the input's name
  std::string tied_to{};  ///< drop: only if this tensor exists
  bool from_file = false;
};

/// Returns the spelling in rule files, such as "column".
[[nodiscard]] std::string_view to_string(ShardAxis shard_axis) noexcept;
[[nodiscard]] std::optional<ShardAxis> parse_shard_axis(std::string_view text) noexcept;

}  // namespace crossrank::checkpoint
