#pragma once
#include <string>

#include "workspace/checkpoint/plan/merge_layout.hpp"
#include "workspace/checkpoint/rules/rule_file.hpp"

namespace crossrank::checkpoint {

/// A planned merge, for its warnings.
struct PlannedMerge {
  MergeLayout const& layout;
  Json const& rules;                    ///< the rules as JSON
  std::string where{};                  ///< names the shards
  RuleFile const* rule_file = nullptr;  ///< the caller's rules; null: none
  std::string rule_path{};              ///< the file of these rules
};

/// Logs a warning for each thing about a merge that is allowed and that may be a mistake: tensors that a layer lacks,
/// ranks that nothing counts, layouts that were assumed, rows that are dropped, rules that do nothing.
void log_plan_warnings(PlannedMerge const& merge);

}  // namespace crossrank::checkpoint
