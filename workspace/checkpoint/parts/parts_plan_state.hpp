#pragma once
#include <filesystem>
#include <vector>

#include <crossrank/checkpoint_parts.hpp>

#include "workspace/checkpoint/parts/plan_file.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"
#include "workspace/checkpoint/write/write_checkpoint.hpp"

namespace crossrank::checkpoint {

/// The state behind the handle of a plan of parts.
struct PartsPlan::State {
  MergePlan merge{};
  PlanFile file{};         ///< what `save` writes
  WriteRequest request{};  ///< all output files; `owner` is their part
};

/// Throws `UsageError` if the plan has no such part.
void require_part(PartsPlan::State const& plan, int part);

/// Returns the output files of one part.
[[nodiscard]] std::vector<OutputFile> files_of_part(PartsPlan::State const& plan, int part);

/// Returns the request for the plan's folder. It always continues from finished files.
[[nodiscard]] JobRequest folder_request(PartsPlan::State const& plan, bool force);

/// Compares published files with the result, as far as `files` go. Throws `UsageError` if one is missing or differs.
/// `options` names operation, threads and progress.
void require_published(PartsPlan::State const& plan, std::vector<OutputFile> files, WorkerPoolOptions const& options);

/// Returns the world of a process that works alone, whatever its launcher announces: parts never connect.
[[nodiscard]] Collective lone_world();

}  // namespace crossrank::checkpoint
