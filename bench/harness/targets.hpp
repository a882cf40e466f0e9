#pragma once
#include <optional>
#include <string>

#include "bench/harness/results.hpp"

namespace crossrank::bench {

/// Returns how many times faster than `peer` our workload must be; empty if there is no target.
[[nodiscard]] std::optional<double> wanted_ratio(Workload const& ours, std::string const& peer);

/// Returns the longest time that a call may take, in microseconds, independent of any peer; empty if there is no
/// target.
[[nodiscard]] std::optional<double> wanted_time(Workload const& ours, unsigned cores);

}  // namespace crossrank::bench
