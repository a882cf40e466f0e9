#pragma once
#include <filesystem>
#include <memory>
#include <string>

#include <crossrank/checkpoint.hpp>

#include "workspace/checkpoint/plan/merge_layout.hpp"

namespace crossrank::checkpoint {

/// The state behind the handle of a plan.
struct MergePlan::State {
  std::filesystem::path shards{};
  PlanOptions options{};
  std::shared_ptr<MergeLayout const> layout{};
  std::shared_ptr<ShardSource const> merged{};  ///< the result as a source
  Json rules{};
  std::uint64_t hash = 0;
};

/// Returns the id of a job that produces `what` from a plan. Ids are equal only for equal rules, options and inputs,
/// including file sizes and modification times.
[[nodiscard]] std::string job_id(MergePlan::State const& plan, std::string const& what);

}  // namespace crossrank::checkpoint
