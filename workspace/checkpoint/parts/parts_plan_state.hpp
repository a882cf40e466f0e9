#pragma once
#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <crossrank/checkpoint/parts.hpp>

#include "workspace/checkpoint/parts/plan_file.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"
#include "workspace/checkpoint/write/write_checkpoint.hpp"

namespace crossrank::checkpoint {

/// The merge of a plan with all of its inputs.
struct WholeMerge {
  MergePlan merge{};
  WriteRequest request{};  ///< all output files; `owner` is their part
};

/// The state behind the handle of a plan of parts. Thread-safe.
struct PartsPlan::State {
  PlanFile file{};                   ///< what `save` writes
  std::string id{};                  ///< of the folder
  std::filesystem::path saved_as{};  ///< file that the plan was read from; empty: the plan was made here

  mutable std::atomic<bool> is_saved{false};  ///< whether the plan is in a file

  /// Returns the whole merge. A plan from a file opens all inputs the first time, and throws `FormatError` if they are
  /// not those of the plan.
  [[nodiscard]] WholeMerge const& whole() const;
  /// Returns the whole merge if it is known already, else null.
  [[nodiscard]] WholeMerge const* known_whole() const;
  /// Sets the whole merge of a plan that is being made.
  void set_whole(std::unique_ptr<WholeMerge const> whole) { whole_ = std::move(whole); }

 private:
  mutable std::mutex mutex_{};
  mutable std::unique_ptr<WholeMerge const> whole_{};
};

/// Throws `UsageError` if the plan has no such part.
void require_part(PartsPlan::State const& plan, int part);

/// Returns a file by name, size and part, without its contents.
[[nodiscard]] OutputFile without_contents(PlannedFile const& file);

/// Throws `FormatError` if an input has changed, was added or was removed. Names all of these. `plan_file` appears in
/// the error.
void require_recorded(std::vector<FileStamp> const& recorded, std::vector<FileStamp> const& found,
                      std::filesystem::path const& plan_file);

/// Returns the request for the plan's folder. It always continues from finished files. Opens all inputs.
[[nodiscard]] JobRequest folder_request(PartsPlan::State const& plan, bool force);

/// Compares published files with the result. Throws `UsageError` if one is missing or differs. `options` names
/// operation, threads and progress. Opens all inputs.
void require_published(PartsPlan::State const& plan, std::vector<OutputFile> files, WorkerPoolOptions const& options);

/// Returns the world of a process that works alone, whatever its launcher announces: parts never connect.
[[nodiscard]] Collective lone_world();

}  // namespace crossrank::checkpoint
