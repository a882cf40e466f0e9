#pragma once
#include <span>
#include <vector>

#include "workspace/checkpoint/memory/exchange/transfer_schedule.hpp"
#include "workspace/checkpoint/plan/merge_layout.hpp"
#include "workspace/checkpoint/write/output_layout.hpp"

namespace crossrank::checkpoint {

/// Chooses the rank that writes each file. The largest file comes first. Among the ranks with the fewest bytes to
/// write, it goes to the one that holds most of its bytes.
void assign_owners_by_bytes(std::span<OutputFile> files, MergeLayout const& layout, WeightCells const& cells);

/// Returns the work of each rank: the parts of tensors in the slices of its files, in the order in which they are
/// written.
[[nodiscard]] std::vector<std::vector<WorkUnit>> units_of(std::span<OutputFile const> files, int ranks);

}  // namespace crossrank::checkpoint
