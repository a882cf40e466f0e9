#pragma once
#include "bench/results.hpp"

namespace crossrank::bench {

/// Prints what many ranks on one node cost, and gives the rows for the JSON file.
[[nodiscard]] nlohmann::ordered_json crowd_table(Results const& results);

}  // namespace crossrank::bench
