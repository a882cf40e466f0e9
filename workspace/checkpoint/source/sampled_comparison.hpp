#pragma once
#include <cstddef>

#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// A tensor and its source.
struct PlacedTensor {
  ShardSource const* source = nullptr;
  std::size_t tensor = 0;
};

/// Returns whether two tensors have the same dtype, shape, and bytes at begin, middle and end.
///
/// This tells a copy from another tensor at the cost of at most six reads of 16 KiB. Throws `IoError` or `FormatError`.
[[nodiscard]] bool samples_match(PlacedTensor a, PlacedTensor b);

/// Returns whether the values at the tensor's begin differ from each other. All ones or all zeros do not identify a
/// tensor.
[[nodiscard]] bool has_distinctive_values(PlacedTensor tensor);

}  // namespace crossrank::checkpoint
