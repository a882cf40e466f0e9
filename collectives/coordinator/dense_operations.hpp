#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank {

/// Rows of all ranks along the first dimension, `sizes[r]` of rank r.
[[nodiscard]] Tensor gather_rows(Collective const& group, Tensor const& tensor, std::vector<std::int64_t> const& sizes);

/// The same for several tensors with as many rows each. `UsageError` for sizes that do not fit; they are exchanged when
/// empty.
[[nodiscard]] std::vector<Tensor> join_rows(Collective const& group, std::vector<Tensor> const& tensors,
                                            std::vector<std::int64_t> sizes, char const* operation);

/// `[world_size, *shape]` on `dst`; none elsewhere.
[[nodiscard]] Tensor gather_equal(Collective const& group, Tensor const& tensor, int dst);

/// Adds `packed` of all ranks; of the sum, the part of `sizes[rank()]` elements that is this rank's.
[[nodiscard]] Tensor reduce_parts(Collective const& group, Tensor const& packed,
                                  std::vector<std::int64_t> const& sizes);

/// `[ranks, *shape]` with the ranks' parts joined along `dim` instead.
[[nodiscard]] Tensor along(Tensor const& joined, Shape const& shape, std::size_t dim);

}  // namespace crossrank
