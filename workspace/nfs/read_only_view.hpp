#pragma once
#include <crossrank/state.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank::workspace {

/// Returns a view of `tensor` that cannot be written, since its data was received from `rank`.
[[nodiscard]] Tensor read_only_view(Tensor const& tensor, int rank);
/// Does so for all tensors of a state.
[[nodiscard]] RankState read_only_view(RankState state, int rank);

}  // namespace crossrank::workspace
