#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/json.hpp>

#include "workspace/checkpoint/rules/merge_rule.hpp"
#include "workspace/checkpoint/source/shard_set.hpp"
#include "workspace/checkpoint/quantization/requantize.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"
#include "workspace/checkpoint/rules/split_rule.hpp"

namespace crossrank::checkpoint {

/// How long a tensor is beside what the config says of its layer.
enum class Fit : std::uint8_t {
  unknown,  ///< nothing is said, or no rank would have less of it
  whole,
  piece,  ///< so many of it make up the whole
  neither,
};

/// How every tensor of a set of shards becomes one: from config, names, shapes and an optional rule file.
///
/// Copyable; any thread may ask. What values must agree, the rules say; read are only group ids, and scales where the
/// policy is not `exact`.
class RuleSet {
 public:
  /// `FormatError` for a rule file that is none, `IoError` when it cannot be read. Keeps the set's sources alive.
  [[nodiscard]] static RuleSet make(ShardSet const& set, std::optional<std::filesystem::path> const& rule_file = {},
                                    ScalePolicy policy = ScalePolicy::exact);

  /// Whether the built-in rules change a set of one source: where a training says that it has padded its vocabulary, or
  /// where there is a fused layer that models of this type have in parts.
  [[nodiscard]] static bool changes_single_source(ShardSet const& set);

  /// The rule for tensor `name` of one pipeline stage and expert rank; `shards[t]` is what tensor-parallel rank t has,
  /// one of the set's own descriptions, null when it has none.
  ///
  /// Results of different stages and expert ranks with the same output name are copies of one tensor (or pieces, where
  /// the rule has an `ep_axis`). `FormatError` when no rule covers the tensor, with rules that would, and when shapes
  /// contradict rule, format or each other; `UsageError` for descriptions that are not the set's.
  [[nodiscard]] MergeRule rule_for(std::string_view name, std::span<SourceTensor const* const> shards) const;

  /// The rule for a tensor of a set of one source, which is taken as it is but for what the rule file wants otherwise
  /// (names, what is dropped, rows of a vocabulary) and the padding that a training says it has given its vocabulary.
  /// Errors as there.
  [[nodiscard]] MergeRule rule_for_single_source(SourceTensor const& tensor) const;

  /// Whether a tensor of a set of one source is whole, by the rules built in; with what contradicts the config where it
  /// is not.
  [[nodiscard]] std::pair<Fit, std::optional<FormatError>> fit_of(SourceTensor const& tensor) const;

  /// How tensor `name` of a whole model (the set's one source, or one cell that is whole) is cut for `ranks` ranks: the
  /// inverse of `rule_for`; with `moe_ep` rank t gets group t % moe_ep of the experts of a stack, cut for those that
  /// have the same. `UsageError` when something does not divide, `FormatError` as there.
  [[nodiscard]] SplitRule split_for(std::string_view name, SourceTensor const& tensor, int ranks, int moe_ep = 1) const;

  /// All that decides: the rules in their order, sizes and format hints. Equal rule sets give equal texts.
  [[nodiscard]] Json to_json() const;

 private:
  struct State;
  explicit RuleSet(std::shared_ptr<State const> state) : state_(std::move(state)) {}

  std::shared_ptr<State const> state_;
};

}  // namespace crossrank::checkpoint
