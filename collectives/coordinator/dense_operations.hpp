#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank {

/// Allocates the result of a collective, of the dtype and on the device of `like`. Errors as for `allocate_result`.
[[nodiscard]] Tensor empty_result(Collective const& group, char const* operation, Shape const& shape,
                                  Tensor const& like);

/// Gathers the rows of several tensors with equal numbers of rows along the first dimension; rank r has `sizes[r]`
/// rows. Exchanges the sizes first when `sizes` is empty. Throws `UsageError` for sizes that do not fit.
[[nodiscard]] std::vector<Tensor> join_rows(Collective const& group, std::vector<Tensor> const& tensors,
                                            std::vector<std::int64_t> sizes, char const* operation);

/// Returns `[world_size, *shape]` on `dst`, an undefined tensor elsewhere.
[[nodiscard]] Tensor gather_equal(Collective const& group, Tensor const& tensor, int dst);

/// Sums `packed` over all ranks and returns this rank's part of the sum, `sizes[rank()]` rows.
[[nodiscard]] Tensor reduce_parts(Collective const& group, Tensor const& packed, std::vector<std::int64_t> const& sizes,
                                  ReduceOrder order);

/// Joins the parts of all ranks, given as `[ranks, *shape]`, along `dim`.
[[nodiscard]] Tensor along(Tensor const& joined, Shape const& shape, std::size_t dim);

}  // namespace crossrank
