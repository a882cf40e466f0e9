#pragma once
#include <cstddef>

#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// One tensor of a source.
struct PlacedTensor {
  ShardSource const* source = nullptr;
  std::size_t tensor = 0;
};

/// Whether begin, middle and end of two tensors of one dtype and shape are the same bytes: enough to tell a copy from
/// another tensor, at the cost of a few reads. False for tensors that differ in dtype or shape. `IoError`,
/// `FormatError`.
[[nodiscard]] bool samples_match(PlacedTensor a, PlacedTensor b);

/// Whether the tensor begins with numbers that are not all equal: ones and zeros say nothing of what they belong to.
[[nodiscard]] bool has_distinctive_values(PlacedTensor tensor);

}  // namespace crossrank::checkpoint
