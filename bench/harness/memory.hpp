#pragma once
#include "bench/harness/results.hpp"

namespace crossrank::bench {

/// Prints the memory and processor time of whole commands and returns the same as rows. Our rows say whether they stay
/// below the limit, and whether memory stays constant as the model grows.
[[nodiscard]] nlohmann::ordered_json memory_table(Results const& results);

}  // namespace crossrank::bench
