#pragma once
#include <vector>

#include "workspace/checkpoint/plan/merge_layout.hpp"
#include "workspace/checkpoint/verify/compare_replicas.hpp"

namespace crossrank::checkpoint {

/// Finds ranks that hold the same bytes although they should hold different pieces, because one file was copied over
/// another. Compares the beginnings of the largest sharded tensors and skips constant data.
///
/// Local; reads a few hundred kilobytes of each file. Errors of the sources.
[[nodiscard]] std::vector<ReplicaFinding> find_duplicate_ranks(MergeLayout const& layout);

}  // namespace crossrank::checkpoint
