#pragma once
#include <cstddef>
#include <cstdint>

#include <crossrank/tensor.hpp>

namespace crossrank {

/// Returns the index of dimension `dim`, which may be negative. `UsageError` when `shape` has no such dimension.
[[nodiscard]] std::size_t resolve_dim(Shape const& shape, std::int64_t dim, char const* operation);

/// The bytes of a slice: `count` runs of `run_bytes` each. A run begins `stride_bytes` after the previous one begins.
struct StridedRuns {
  Shape shape{};  ///< shape of the slice
  std::size_t first_byte = 0;
  std::size_t count = 0;
  std::size_t run_bytes = 0;
  std::size_t stride_bytes = 0;
};

/// Returns the runs of a slice. `UsageError` when the tensor is undefined, when dimension or range does not exist, or
/// when the slice begins or ends inside a byte.
[[nodiscard]] StridedRuns slice_runs(Tensor const& tensor, std::int64_t dim, std::int64_t begin, std::int64_t length,
                                     char const* operation);

}  // namespace crossrank
