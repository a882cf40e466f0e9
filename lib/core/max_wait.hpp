#pragma once
#include <chrono>

namespace crossrank {

/// Upper limit of every timeout, so that sums of timeouts and the clock stay in range.
inline constexpr std::chrono::milliseconds max_wait = std::chrono::hours(24 * 36'500);

}  // namespace crossrank
