#pragma once
#include <cstddef>
#include <cstdint>

#include <crossrank/tensor.hpp>

namespace crossrank {

/// `dim` counted from the front; `UsageError` when `shape` has no such dimension.
[[nodiscard]] std::size_t resolve_dim(Shape const& shape, std::int64_t dim, char const* operation);

/// Where the bytes of a range of one dimension stand: `pieces` runs of `piece_bytes`, `stride_bytes` from start to
/// start.
struct Cut {
  Shape shape{};  ///< of what is cut out
  std::size_t first_byte = 0;
  std::size_t pieces = 0;
  std::size_t piece_bytes = 0;
  std::size_t stride_bytes = 0;
};

/// `UsageError` when there is no tensor, dimension or range, or when the cut falls inside a byte.
[[nodiscard]] Cut plan_cut(Tensor const& tensor, std::int64_t dim, std::int64_t begin, std::int64_t length,
                           char const* operation);

}  // namespace crossrank
