#pragma once
#include <string>

#include "workspace/checkpoint/memory/weight_cells.hpp"
#include "workspace/checkpoint/plan/merge_layout.hpp"

namespace crossrank::checkpoint {

/// Compares the replicas of all ranks by checksums of the bytes in their memory. Collective; sends only the checksums.
///
/// Replicas of partial values are compared value by value, before they are combined. Throws a `FormatError` that names
/// the tensor and the ranks.
void require_equal_replicas_in_memory(Collective const& world, WeightCells const& cells, MergeLayout const& layout,
                                      std::string const& operation);

}  // namespace crossrank::checkpoint
