#pragma once
#include <vector>

#include "workspace/checkpoint/plan/merged_tensor.hpp"

namespace crossrank::checkpoint {

/// Makes one tensor of its parts, as `MergeRule::fused` of each part says: the inverse of the separation of a fused
/// layer. The parts have the same name and different numbers.
///
/// `FormatError` when a part is missing, when dtypes, columns or kinds of the parts differ, or when rows do not divide
/// into the groups.
[[nodiscard]] MergedTensor fuse_tensors(std::vector<MergedTensor> parts);

}  // namespace crossrank::checkpoint
