#pragma once
#include "bench/harness/results.hpp"

namespace crossrank::bench {

/// Prints what many ranks on one node cost, and gives the rows for the JSON file.
[[nodiscard]] nlohmann::ordered_json scaling_table(Results const& results);

}  // namespace crossrank::bench
