#include "workspace/checkpoint/plan/plan_warnings.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "lib/core/log.hpp"
#include "workspace/checkpoint/model/model_names.hpp"
#include "workspace/checkpoint/plan/check_layers.hpp"
#include "workspace/checkpoint/rules/rule_set/unused_rules.hpp"

namespace crossrank::checkpoint {
namespace {

/// Warns of tensors that the model may lack by design, or because a part was not saved.
void warn_of_missing_tensors(MergePlan::State const& state) {
  auto const& layout = *state.layout;
  auto const names = names_of(layout);
  auto findings = check_missing_tensors(names);
  auto const add = [&](std::vector<Defect> more) {
    findings.insert(findings.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  };
  auto const config = state.rules.find("config");
  add(check_vocabulary(layout.tensors, ModelSizes(config != state.rules.end() ? *config : layout.set.config)));
  // Only some serving programs fuse these layers.
  bool const served =
      std::filesystem::path(layout.set.sources.front()->name()).filename().string().starts_with("model-rank-");
  if (served) add(check_fused_layers(names, layout.set.config));
  add(check_stacked_layers(names));
  add(ModelNames(layout.set.config).check(names, state.shards.string()));
  for (auto const& finding : findings) log_event(LogLevel::warning, finding.text, {{"tensor", finding.resource}});
}

/// Warns of assumptions that change the model if they are wrong.
void warn_of_assumptions(MergeLayout const& layout) {
  auto const found = std::find_if(layout.tensors.begin(), layout.tensors.end(),
                                  [](auto const& tensor) { return tensor.rule.assumed_layout; });
  if (found == layout.tensors.end()) return;
  log_event(LogLevel::warning,
            "assumed that fused layers are sharded part by part (`fused_layout` per_rank); transformers' own tensor "
            "parallelism shards them as one block: `fused_layout` plain merges such shards",
            {{"tensor", found->name}});
}

/// Warns of rules that apply to no tensor, which are probably mistakes.
void warn_of_unused_rules(MergePlan::State const& state) {
  if (state.options.rules.empty()) return;
  auto const& set = state.layout->set;
  for (auto const& text : unused_rules(RuleFile::read(state.options.rules), set, ModelSizes(set.config).model_type()))
    log_event(LogLevel::warning, text, {{"file", state.options.rules.string()}});
}

}  // namespace

void log_plan_warnings(MergePlan::State const& state) {
  warn_of_missing_tensors(state);
  warn_of_assumptions(*state.layout);
  warn_of_unused_rules(state);
}

}  // namespace crossrank::checkpoint
