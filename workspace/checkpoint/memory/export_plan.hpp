#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/checkpoint/memory_export.hpp>

#include "workspace/checkpoint/memory/exchange/transfer_schedule.hpp"
#include "workspace/checkpoint/memory/weight_cells.hpp"
#include "workspace/checkpoint/plan/merge_layout.hpp"
#include "workspace/checkpoint/rules/rule_file.hpp"

namespace crossrank::checkpoint {

/// The merge of the weights of all ranks. The same on all ranks, except for the tensors in memory and sidecar files.
struct ExportPlan {
  WeightCells cells{};
  std::shared_ptr<MergeLayout const> layout{};  ///< its sources are the cells
  std::optional<RuleFile> rules{};              ///< the rule file in the direction of the export
};

/// Plans the merge of the weights of all ranks, and compares their replicas. Collective. Errors of
/// `consolidate(world, weights, ...)`.
[[nodiscard]] ExportPlan plan_export(Collective const& world, StateDict const& weights, Placements const& placements,
                                     ModelDescription const& model, std::string const& operation);

/// Sorts ranges and joins those that touch or overlap.
void join_ranges(std::vector<CellRange>& ranges);

/// Returns the bytes of the cells that bytes `[offset, offset + size)` of a tensor of the result depend on, sorted and
/// without overlaps.
[[nodiscard]] std::vector<CellRange> inputs_of(MergeLayout const& layout, std::size_t tensor, std::uint64_t offset,
                                               std::uint64_t size);

}  // namespace crossrank::checkpoint
