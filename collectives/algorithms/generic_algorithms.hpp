#pragma once
#include <memory>

#include "collectives/algorithms/execution.hpp"

namespace crossrank::algorithms {

/// Returns the algorithm for a call that the transport has no operation for. It uses only operations that every
/// transport has. `call` must outlive it.
///
/// gatherv, all_to_allv and reductions use all_gatherv in pieces of bounded size, and each rank takes its part.
/// scatterv uses broadcast in pieces. The traffic is size x ranks. If the transport has all_to_allv, long reductions
/// exchange slices, each rank reduces its own, and all_reduce joins them: the traffic is twice the size.
[[nodiscard]] std::unique_ptr<Algorithm> generic_algorithm(Call const& call, spi::Transport& transport);

}  // namespace crossrank::algorithms
