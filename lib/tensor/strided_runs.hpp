#pragma once
#include <cstddef>
#include <cstdint>

#include <crossrank/tensor.hpp>

namespace crossrank {

/// Returns the index of dimension `dim`, which may be negative. `UsageError` when `shape` has no such dimension.
[[nodiscard]] std::size_t resolve_dim(Shape const& shape, std::int64_t dim, char const* operation);

/// Runs of bytes of one length at equal distances, in row-major order.
struct StridedRuns {
  std::uint64_t count = 1;
  std::uint64_t run_bytes = 0;
  std::uint64_t first_byte = 0;    ///< start of the first run
  std::uint64_t stride_bytes = 0;  ///< from the start of one run to that of the next

  /// Returns the start of run `number`.
  [[nodiscard]] std::uint64_t start(std::uint64_t number) const noexcept { return first_byte + number * stride_bytes; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return count * run_bytes; }
};

/// A range of one dimension of a tensor.
struct TensorSlice {
  Shape shape{};
  StridedRuns runs{.count = 0};
};

/// Returns the runs of a slice. `UsageError` when the tensor is undefined, when dimension or range does not exist, or
/// when the slice begins or ends inside a byte.
[[nodiscard]] TensorSlice slice_runs(Tensor const& tensor, std::int64_t dim, std::int64_t begin, std::int64_t length,
                                     char const* operation);

}  // namespace crossrank
