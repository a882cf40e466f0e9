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

/// How a layer is spread over tensor-parallel ranks.
enum class ShardAxis : std::uint8_t {
  replicate,   ///< every rank has all of it
  column,      ///< along the outputs
  row,         ///< along the inputs
  vocabulary,  ///< along the tokens, perhaps padded; or along the hidden width
  reduce,      ///< values that become one
  drop,        ///< not part of the result
};

/// A length: a number, or one that the config gives.
using RuleSize = std::variant<std::int64_t, SizeName>;

/// One rule: which layers, and how they are cut.
struct LayerRule {
  NamePattern pattern{};
  ShardAxis shard_axis = ShardAxis::replicate;
  std::vector<RuleSize> parts{};     ///< fused pieces along the output, in their full sizes; one: the output itself
  std::optional<RuleSize> inputs{};  ///< full size of the input
  bool grouped = false;  ///< parts alternate per key/value group (q ... q, k, v, q ... q, k, v) instead of per rank
  bool plain = false;    ///< parts are cut as one block: shards follow each other whole, wherever the parts begin
  std::optional<RuleSize> groups{};   ///< grouped: so many groups; not given: one for each key/value head
  std::optional<SizeName> repeat{};   ///< parts: all of them once more for each of so many
  bool gate = false;                  ///< one part, or two equal ones when the model has a gated feed-forward
  bool stacked = false;               ///< the weight's first dimension counts experts
  bool transposed = false;            ///< the weight is [in, out]
  bool left_whole = false;            ///< shards may be cut so, but cutting a model leaves it whole
  std::vector<std::string> models{};  ///< only for these model types; empty: all

  bool whole_name = false;  ///< the pattern is of a tensor's whole name; `axis` counts its dimensions
  std::optional<int> axis{};
  int replicas = 0;               ///< neighbouring ranks with the same piece; 0: as the sizes say
  std::int64_t true_size = -1;    ///< as `MergeRule`
  std::int64_t add_per_rank = 0;  ///< as `MergeRule`
  ReduceOp op = ReduceOp::max;
  std::string rename{};   ///< the result's name; `*` stand for what the pattern's numbers were
  std::string tied_to{};  ///< drop: only when this tensor is there
  bool from_file = false;
};

/// "column", as rule files spell it.
[[nodiscard]] std::string_view to_string(ShardAxis shard_axis) noexcept;
[[nodiscard]] std::optional<ShardAxis> parse_shard_axis(std::string_view text) noexcept;

}  // namespace crossrank::checkpoint
