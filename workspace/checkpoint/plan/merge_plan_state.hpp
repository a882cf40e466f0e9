#pragma once
#include <filesystem>
#include <memory>
#include <string>

#include <crossrank/checkpoint.hpp>

#include "workspace/checkpoint/plan/merge_layout.hpp"

namespace crossrank::checkpoint {

/// What a plan's handle holds.
struct MergePlan::State {
  std::filesystem::path shards{};
  PlanOptions options{};
  std::shared_ptr<MergeLayout const> layout{};
  Json rules{};
  std::uint64_t hash = 0;
};

/// Name of a job that makes `what` of a plan: the same only for the same inputs (sizes and times of change included),
/// rules and options.
[[nodiscard]] std::string job_id(MergePlan::State const& plan, std::string const& what);

}  // namespace crossrank::checkpoint
