#pragma once
#include "collectives/algorithms/call.hpp"

namespace crossrank {

/// Collective: compares what the ranks are about to call, by one all_gatherv of 128 bytes. `MismatchError` on all,
/// which names the groups of ranks and their calls, when they are not the same.
void compare_calls(spi::Transport& transport, algorithms::Call const& call, spi::TimeoutPolicy const& timeout_policy);

}  // namespace crossrank
