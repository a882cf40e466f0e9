#pragma once
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "tools/checkpoint/checkpoint_options.hpp"
#include "tools/cli/session.hpp"
#include "workspace/checkpoint/write/write_checkpoint.hpp"

namespace crossrank::tools {

/// Returns a merge plan as the JSON output of the commands describes it.
[[nodiscard]] Json plan_json(checkpoint::MergePlan const& plan);

/// Describes where each of these tensors comes from.
[[nodiscard]] CommandResult explain_tensors(checkpoint::MergePlan const& plan, std::vector<std::string> const& tensors);
/// Describes where each of these tensors comes from and which part of it each output shard gets.
[[nodiscard]] CommandResult explain_shards(checkpoint::MergePlan const& plan, checkpoint::WriteRequest const& request,
                                           std::vector<std::string> const& tensors);

/// Describes the files that would be written. Throws the errors that writing would throw before its first byte.
[[nodiscard]] CommandResult describe_request(checkpoint::MergePlan const& plan,
                                             checkpoint::WriteRequest const& request);

/// Describes the files that were written.
[[nodiscard]] CommandResult describe_summary(checkpoint::MergePlan const& plan, checkpoint::Summary const& summary,
                                             OutputOptions const& output);

}  // namespace crossrank::tools
