#pragma once
#include <memory>

#include "collectives/algorithms/execution.hpp"

namespace crossrank::algorithms {

/// The algorithm over the required operations for a call that the transport has no operation for. `call` outlives the
/// algorithm.
///
/// gatherv, all_to_allv and reductions: all_gatherv in pieces of bounded size, each rank takes what is its own;
/// scatterv: broadcast in pieces. Costs size x ranks of traffic. Where the transport has all_to_allv, long reductions
/// exchange slices, each rank reduces its own, and all_reduce joins them: twice the size.
[[nodiscard]] std::unique_ptr<Algorithm> generic_algorithm(Call const& call, spi::Transport& transport);

}  // namespace crossrank::algorithms
