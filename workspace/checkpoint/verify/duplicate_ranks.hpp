#pragma once
#include <vector>

#include "workspace/checkpoint/plan/merge_layout.hpp"
#include "workspace/checkpoint/verify/compare_replicas.hpp"

namespace crossrank::checkpoint {

/// Ranks that hold the same bytes where they should hold different pieces: a file that was copied over another one's
/// name. Looks at the beginnings of the largest tensors that are cut, and not at those of equal numbers throughout.
///
/// Local; reads some hundred kilobytes of each file. Errors of the sources.
[[nodiscard]] std::vector<ReplicaFinding> find_duplicate_ranks(MergeLayout const& layout);

}  // namespace crossrank::checkpoint
