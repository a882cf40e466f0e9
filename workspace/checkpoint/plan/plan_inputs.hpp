#pragma once
#include <filesystem>

#include <crossrank/checkpoint.hpp>
#include <crossrank/json.hpp>

namespace crossrank::checkpoint {

/// The arguments of `MergePlan::make`, as saved plans record them.
struct PlanInputs {
  std::filesystem::path shards{};
  PlanOptions options{};
};

/// Returns the arguments as JSON.
[[nodiscard]] Json to_json(PlanInputs const& inputs);

/// Reads what `to_json` returned. Missing values are the defaults. Throws `Json::exception` for a value of another type
/// and for an enumerator that does not exist.
[[nodiscard]] PlanInputs plan_inputs_from_json(Json const& json);

}  // namespace crossrank::checkpoint
