#pragma once
#include "bench/harness/results.hpp"

namespace crossrank::bench {

/// Prints the costs of many ranks on one node and returns them as rows for the JSON file.
[[nodiscard]] nlohmann::ordered_json scaling_table(Results const& results);

}  // namespace crossrank::bench
