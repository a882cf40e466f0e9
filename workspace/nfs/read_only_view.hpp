#pragma once
#include <crossrank/state.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank::workspace {

/// A view of `tensor` that cannot be written: what was received from `rank`, whatever it travelled through.
[[nodiscard]] Tensor read_only_view(Tensor tensor, int rank);
/// The same for all tensors of a state.
[[nodiscard]] RankState read_only_view(RankState state, int rank);

}  // namespace crossrank::workspace
