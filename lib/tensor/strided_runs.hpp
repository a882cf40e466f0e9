#pragma once
#include <cstddef>
#include <cstdint>

#include <crossrank/tensor.hpp>

namespace crossrank {

/// `dim` counted from the front; `UsageError` when `shape` has no such dimension.
[[nodiscard]] std::size_t resolve_dim(Shape const& shape, std::int64_t dim, char const* operation);

/// Where the bytes of a range of one dimension stand: `count` runs of `run_bytes`, `stride_bytes` from start to
/// start.
struct StridedRuns {
  Shape shape{};  ///< of the slice
  std::size_t first_byte = 0;
  std::size_t count = 0;
  std::size_t run_bytes = 0;
  std::size_t stride_bytes = 0;
};

/// `UsageError` when there is no tensor, dimension or range, or when the slice splits a byte.
[[nodiscard]] StridedRuns slice_runs(Tensor const& tensor, std::int64_t dim, std::int64_t begin, std::int64_t length,
                                     char const* operation);

}  // namespace crossrank
