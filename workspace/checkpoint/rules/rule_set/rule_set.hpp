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

struct RuleFile;

/// How the length of a tensor compares with the config.
enum class Fit : std::uint8_t {
  unknown,  ///< the config does not say, or the tensor is never sharded
  whole,
  piece,  ///< several of this length add up to the whole
  neither,
};

/// The rules for all tensors of a set of shards, from config, names, shapes and an optional rule file.
///
/// Copyable; may be used by any thread. Reads no data except group ids and, if the policy is not `exact`, scales.
class RuleSet {
 public:
  /// Makes the rules of a set and keeps its sources alive. `FormatError` for an invalid rule file, `IoError` when it
  /// cannot be read.
  [[nodiscard]] static RuleSet make(ShardSet const& set, std::optional<std::filesystem::path> const& rule_file = {},
                                    ScalePolicy policy = ScalePolicy::exact);
  /// Makes the rules of a set with rules that are already read.
  [[nodiscard]] static RuleSet make_with(ShardSet const& set, RuleFile rule_file,
                                         ScalePolicy policy = ScalePolicy::exact);

  /// Returns whether the built-in rules change a set of one source: if its training arguments give a padded vocabulary,
  /// or if it has a fused layer that models of this type have in parts.
  [[nodiscard]] static bool changes_single_source(ShardSet const& set);

  /// Returns the rule for tensor `name` of one pipeline stage and expert rank. `shards[t]` is the tensor of
  /// tensor-parallel rank t: one of the set's own descriptions, or null. `places[t]` is its place in the set; without
  /// `places`, no two sources may share descriptions.
  ///
  /// Results of different stages and expert ranks with the same output name are replicas of one tensor, or its pieces
  /// if the rule has an `ep_axis`. `FormatError` when no rule covers the tensor (it proposes rules), or when shapes
  /// contradict the rule, the format or each other. `UsageError` for descriptions of other sets.
  [[nodiscard]] MergeRule rule_for(std::string_view name, std::span<SourceTensor const* const> shards,
                                   std::span<TensorAt const> places = {}) const;

  /// Returns the rule for a tensor of a set of one source. The tensor stays as it is except for names, dropped tensors
  /// and vocabulary rows that the rule file changes, and padding of the vocabulary that the training arguments give.
  /// Errors as for `rule_for`.
  [[nodiscard]] MergeRule rule_for_single_source(SourceTensor const& tensor) const;

  /// Returns whether a tensor of a set of one source is whole by the built-in rules, and the contradiction to the
  /// config if it is not.
  [[nodiscard]] std::pair<Fit, std::optional<FormatError>> fit_of(SourceTensor const& tensor) const;

  /// Returns how tensor `name` of a whole model is split over `ranks` ranks: the inverse of `rule_for`. With `moe_ep`,
  /// rank t gets group t % moe_ep of the experts of a stack, split over the ranks of that group. `UsageError` when the
  /// ranks do not divide a dimension; `FormatError` as for `rule_for`.
  [[nodiscard]] SplitRule split_for(std::string_view name, SourceTensor const& tensor, int ranks, int moe_ep = 1) const;

  /// Returns everything that decides: the rules in their order, sizes and format hints. Equal rule sets give equal
  /// JSON.
  [[nodiscard]] Json to_json() const;

 private:
  struct State;
  explicit RuleSet(std::shared_ptr<State const> state) : state_(std::move(state)) {}
  /// Returns how a tensor of stacked experts is split; nothing for other tensors.
  [[nodiscard]] std::optional<SplitRule> split_experts(std::string_view name, SourceTensor const& tensor, int ranks,
                                                       int moe_ep) const;

  std::shared_ptr<State const> state_;
};

}  // namespace crossrank::checkpoint
