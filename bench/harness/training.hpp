#pragma once
#include <nlohmann/json.hpp>

#include "bench/harness/results.hpp"

namespace crossrank::bench {

/// Prints how much of the communication of a training step backward hides, and the memory of a rank, and returns the
/// same as rows for the JSON file.
[[nodiscard]] nlohmann::ordered_json training_table(Results const& results);

}  // namespace crossrank::bench
