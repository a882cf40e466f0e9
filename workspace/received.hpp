#pragma once
#include <crossrank/state.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank::workspace {

/// A view of `tensor` that cannot be written: what was received from `rank`, whatever it travelled through.
[[nodiscard]] Tensor received(Tensor tensor, int rank);
/// The same for all tensors of a state.
[[nodiscard]] RankState received(RankState state, int rank);

}  // namespace crossrank::workspace
