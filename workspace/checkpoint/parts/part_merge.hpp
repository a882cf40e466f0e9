#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lib/platform/files/directory.hpp"
#include "workspace/checkpoint/parts/parts_plan_state.hpp"
#include "workspace/checkpoint/plan/merge_layout.hpp"
#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/write/output_layout.hpp"

namespace crossrank::checkpoint {

/// The merge of some output files of a plan.
struct PartMerge {
  std::shared_ptr<MergeLayout const> layout{};  ///< at least the tensors of the files
  std::vector<OutputFile> files{};
  std::vector<FileStamp> inputs{};  ///< stamps of the opened inputs
};

/// Opens the inputs that some files of a plan need, and no others, as the recipes in the plan's folder tell. Returns
/// nothing if a file has no recipe.
///
/// Throws `FormatError` if an input or a recipe is not that of the plan, and `IoError` if an input cannot be read.
[[nodiscard]] std::optional<PartMerge> open_part(PartsPlan::State const& plan, std::span<PlannedFile const> files,
                                                 platform::Directory const& folder);

/// Returns some files of a plan whose inputs are all open.
[[nodiscard]] PartMerge take_part(WholeMerge const& whole, std::span<PlannedFile const> files);

}  // namespace crossrank::checkpoint
