#pragma once
#include <filesystem>

#include "workspace/checkpoint/parts/plan_file.hpp"

namespace crossrank::checkpoint {

/// Returns the absolute path, without "." parts. Keeps "..", because it leads elsewhere behind a link.
[[nodiscard]] std::filesystem::path absolute_path(std::filesystem::path const& path);

/// Throws `UsageError` if a plan is in a directory in which other users can replace it.
void require_protected_plan(std::filesystem::path const& file);

/// Throws `UsageError` unless the plan can be saved as `file`: a new file or an earlier plan, outside the shards, whose
/// path is UTF-8. Throws `IoError` if the system cannot tell.
void require_plan_path(std::filesystem::path const& file, PlanFile const& plan);

}  // namespace crossrank::checkpoint
