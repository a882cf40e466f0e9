#pragma once
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "tools/cli/session.hpp"
#include "workspace/checkpoint/write/write_checkpoint.hpp"

namespace crossrank::tools {

/// Where each of these tensors comes from, instead of writing.
[[nodiscard]] CommandResult explain_tensors(checkpoint::MergePlan const& plan, std::vector<std::string> const& tensors);
/// The same for shards that are to be cut: also what each of them gets.
[[nodiscard]] CommandResult explain_shards(checkpoint::MergePlan const& plan, checkpoint::WriteRequest const& request,
                                           std::vector<std::string> const& tensors);

/// What would be written. Throws what the writing would throw before its first byte.
[[nodiscard]] CommandResult describe_request(checkpoint::MergePlan const& plan,
                                             checkpoint::WriteRequest const& request);

/// What has been written.
[[nodiscard]] CommandResult describe_summary(checkpoint::MergePlan const& plan, checkpoint::Summary const& summary,
                                             OutputOptions const& output);

}  // namespace crossrank::tools
