#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// A tensor and its source.
struct SampledTensor {
  ShardSource const* source = nullptr;
  std::size_t tensor = 0;
};

/// Size of a sample of a tensor in bytes; a smaller tensor is one sample.
inline constexpr std::uint64_t sample_bytes = std::uint64_t{16} << 10;

/// Returns where the samples of a tensor of `bytes` bytes begin: at its begin, in the middle and at the end.
[[nodiscard]] constexpr std::array<std::uint64_t, 3> sample_places(std::uint64_t bytes) {
  auto const size = std::min(bytes, sample_bytes);
  return {0, (bytes - size) / 2, bytes - size};
}

/// Returns whether two tensors have the same dtype, shape, and bytes at begin, middle and end.
///
/// This tells a copy from another tensor at the cost of at most six reads of 16 KiB. Throws `IoError` or `FormatError`.
[[nodiscard]] bool samples_match(SampledTensor a, SampledTensor b);

/// Returns whether the values at the tensor's begin differ from each other. All ones or all zeros do not identify a
/// tensor.
[[nodiscard]] bool has_distinctive_values(SampledTensor tensor);

}  // namespace crossrank::checkpoint
