#pragma once
#include "collectives/algorithms/call.hpp"

namespace crossrank {

/// Compares the calls that the ranks are about to make, by one all_gatherv of 128 bytes. Collective. Throws the same
/// `MismatchError` on all ranks when they differ; it lists each call with its ranks.
void compare_calls(spi::Transport& transport, algorithms::Call const& call, spi::TimeoutPolicy const& timeout_policy);

}  // namespace crossrank
