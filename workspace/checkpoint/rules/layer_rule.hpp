#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <crossrank/collective.hpp>

#include "workspace/checkpoint/model/model_sizes.hpp"
#include "workspace/checkpoint/model/name_pattern.hpp"
#include "workspace/checkpoint/quantization/number_format.hpp"

namespace crossrank::checkpoint {

/// A length: a number, or the name of a size in the config.
using RuleSize = std::variant<std::int64_t, SizeName>;

/// The order in which the fused parts of a column-parallel layer lie in the shards.
enum class PartLayout : std::uint8_t {
  per_rank,  ///< each shard holds all parts one after another
  grouped,   ///< parts alternate per key/value group (q ... q, k, v, q ... q, k, v)
  plain,     ///< the fused layer is sharded as one block, without regard to its parts
};

/// Every rank has all of it.
struct Replicated {};

/// Sharded along the outputs.
struct ColumnLayer {
  std::vector<RuleSize> parts{};  ///< full widths of the fused parts; a single part is the whole output
  PartLayout layout = PartLayout::per_rank;
  std::optional<RuleSize> groups{};  ///< grouped: number of groups; default: one per key/value head
  std::optional<SizeName> repeat{};  ///< the number of times that all parts repeat
  bool gate = false;                 ///< one part, or two equal parts if the model has a gated feed-forward layer
  int replicas = 1;                  ///< number of neighbouring ranks with the same piece; more for shared heads
  LayerOrder order{};
  bool left_whole = false;  ///< a merge accepts such shards, but a split replicates the layer
};

/// Sharded along the inputs.
struct RowLayer {
  std::optional<RuleSize> inputs{};   ///< full size of the input
  std::optional<RuleSize> outputs{};  ///< full size of the output, along which some programs shard the layer instead
  LayerOrder order{};
  bool left_whole = false;  ///< as `ColumnLayer`
};

/// Sharded along the tokens, possibly padded, or along the hidden width.
struct VocabularyLayer {
  RuleSize tokens = SizeName::vocabulary;  ///< number of tokens without padding
};

/// Values that are reduced to one.
struct ReducedValue {
  ReduceOp op = ReduceOp::max;
};

/// Not part of the result.
struct Dropped {
  std::string tied_to{};  ///< dropped only if this tensor exists; empty: always
};

/// One tensor sharded along a dimension, without regard to its layer and the config.
struct ShardedTensor {
  int axis = 0;
  std::vector<std::int64_t> parts{};  ///< relative widths of fused parts; empty: one part
  int replicas = 1;                   ///< number of neighbouring ranks with the same piece
  std::int64_t true_size = -1;        ///< as `Concatenate`
  std::int64_t add_per_rank = 0;      ///< as `Concatenate`
};

/// How a layer or a tensor is sharded over tensor-parallel ranks, if it is.
using RuleKind = std::variant<Replicated, ColumnLayer, RowLayer, VocabularyLayer, ReducedValue, Dropped, ShardedTensor>;

/// A rule: the layers or tensors it covers, and how they are sharded.
struct LayerRule {
  NamePattern pattern{};
  RuleKind kind{};
  std::vector<std::string> models{};  ///< only for these model types; empty: all
  std::string rename{};  ///< name of the result; each `*` is replaced by a number of the input's name; empty: kept
  std::vector<std::string> part_names{};  ///< likewise the names of the parts of a fused layer, which become layers
  bool whole_name = false;  ///< the pattern matches the whole name of a tensor instead of the name of a layer
  bool from_file = false;   ///< a rule of the user, not a built-in one
  std::shared_ptr<LayerRule const> fused{};  ///< the layer becomes a part of a layer that this rule separates
  std::size_t part = 0;                      ///< number of the part in `fused`

  /// Returns whether the rule is of alternative `Kind`.
  template <class Kind>
  [[nodiscard]] bool is() const noexcept {
    return std::holds_alternative<Kind>(kind);
  }

  [[nodiscard]] bool applies_to_model(std::string_view model_type) const;
  /// Returns whether the pattern matches tensor `name` or its layer `module`.
  [[nodiscard]] bool matches(std::string_view name, std::string_view module) const;
  /// Returns the order of dimensions in the weight. Kinds without an order have the default.
  [[nodiscard]] LayerOrder order() const;
  /// Returns whether a split replicates a layer that a merge accepts sharded.
  [[nodiscard]] bool left_whole() const;
  /// Returns where the rule is from and its pattern, for messages.
  [[nodiscard]] std::string origin() const;
};

/// Returns the spelling of a kind as the "sharding" of rule files. A sharded tensor has none there and counts as
/// "column".
[[nodiscard]] std::string_view sharding_name(RuleKind const& kind);

/// Returns the length that a rule names, or nothing if the rule names none or the config does not give it.
[[nodiscard]] std::optional<std::int64_t> resolve(std::optional<RuleSize> const& size, ModelSizes const& sizes);

/// Returns whether a part has a piece for each key/value head, so that ranks may share a piece.
[[nodiscard]] bool is_of_kv_heads(RuleSize const& size);

}  // namespace crossrank::checkpoint
