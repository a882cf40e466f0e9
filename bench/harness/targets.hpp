#pragma once
#include <optional>
#include <string>

#include "bench/harness/results.hpp"

namespace crossrank::bench {

/// How many times faster than `peer` this workload of ours has to be; nothing where no target is set.
[[nodiscard]] std::optional<double> wanted_ratio(Workload const& ours, std::string const& peer);

/// The longest that a call may take, in microseconds, whoever else is measured; nothing where no target is set.
[[nodiscard]] std::optional<double> wanted_time(Workload const& ours, unsigned cores);

}  // namespace crossrank::bench
