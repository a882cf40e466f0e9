#pragma once
#include <memory>
#include <optional>
#include <string>

#include <crossrank/checkpoint.hpp>

#include "workspace/checkpoint/plan/merge_layout.hpp"
#include "workspace/checkpoint/rules/rule_file.hpp"
#include "workspace/checkpoint/rules/rule_set/rule_set.hpp"

namespace crossrank::checkpoint {

/// A set of shards with the rules for it.
struct PlannedSet {
  std::shared_ptr<MergeLayout const> layout{};
  Json rules{};  ///< the rules as JSON; null if the set needs none
};

/// Returns what gives `lay_out_merge` the rules of `set`.
[[nodiscard]] RuleFor rules_of(RuleSet const& rule_set, ShardSet const& set);

/// Chooses the rules of a set and lays out its merge. `where` names the set in errors.
///
/// Throws `FormatError` when shards or layers are missing or do not fit together; errors of the rules.
[[nodiscard]] PlannedSet plan_shard_set(ShardSet set, std::optional<RuleFile> rule_file, ScalePolicy policy,
                                        std::string const& where);

}  // namespace crossrank::checkpoint
