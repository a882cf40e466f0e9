#include "workspace/checkpoint/plan/plan_shard_set.hpp"

#include <utility>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/discovery/grid/missing_ranks.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/plan/checks/check_model.hpp"
#include "workspace/checkpoint/plan/checks/single_shard.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

MergeLayout merge_all(ShardSet const& set, RuleSet const& rule_set) {
  try {
    return lay_out_merge(set, rules_of(rule_set, set));
  } catch (FormatError const& error) {
    if (section_of(error) == ErrorSection::missing_ranks) throw missing_ranks(set, error);
    throw;
  }
}

/// Finds missing stages and expert ranks by gaps in the numbers of layers or experts.
void require_coverage(MergeLayout const& layout, Json const& config, std::string const& where) {
  for (auto const& gap : find_gaps(names_of(layout), config)) {
    if (!gap.wanted || gap.missing.empty()) continue;
    throw FormatError({.operation = plan_operation,
                       .message = gap.text(),
                       .expected = std::to_string(*gap.wanted) + " by the config",
                       .resource = where,
                       .hint = "copy the missing shards there, or correct the config; `rules` with {\"sizes\": ...} "
                               "gives other numbers than the config's",
                       .section = to_string(ErrorSection::coverage)});
  }
}

}  // namespace

RuleFor rules_of(RuleSet const& rule_set, ShardSet const& set) {
  if (set.sources.size() == 1)
    return [rule_set](ShardGroup const& group) { return rule_set.rule_for_single_source(*group.shards.front()); };
  return [rule_set](ShardGroup const& group) { return rule_set.rule_for(group.name, group.shards, group.places); };
}

PlannedSet plan_shard_set(ShardSet set, std::optional<RuleFile> rule_file, ScalePolicy policy,
                          std::string const& where) {
  PlannedSet planned;
  auto sizes = set.config;
  if (!rule_file) {
    if (auto const error = check_single_shard(set)) throw FormatError(*error);
  }
  if (set.sources.size() > 1 || rule_file || RuleSet::changes_single_source(set)) {
    auto const rule_set = RuleSet::make_with(set, std::move(rule_file).value_or(RuleFile()), policy);
    planned.rules = rule_set.to_json();
    sizes = planned.rules.at("config");
    planned.layout = std::make_shared<MergeLayout const>(merge_all(set, rule_set));
  } else {
    planned.layout = std::make_shared<MergeLayout const>(lay_out_merge(std::move(set), {}));
  }
  require_coverage(*planned.layout, sizes, where);
  return planned;
}

}  // namespace crossrank::checkpoint
