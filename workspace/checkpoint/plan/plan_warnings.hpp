#pragma once
#include "workspace/checkpoint/plan/merge_plan_state.hpp"

namespace crossrank::checkpoint {

/// Logs a warning for each thing about a plan that is allowed and that may be a mistake: tensors that a layer lacks,
/// layouts that were assumed, rules that do nothing.
void log_plan_warnings(MergePlan::State const& state);

}  // namespace crossrank::checkpoint
