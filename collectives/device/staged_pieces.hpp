#pragma once
#include <vector>

#include "collectives/algorithms/call.hpp"

namespace crossrank::device {

/// Divides a long call into calls of some megabytes, so that the copies of one overlap with another one on the CPU
/// transport, and page-locked memory stays small. All ranks divide alike. Messages and exchanges of uneven parts stay
/// whole.
[[nodiscard]] std::vector<algorithms::Call> staged_pieces(algorithms::Call&& call);

}  // namespace crossrank::device
