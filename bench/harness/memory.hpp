#pragma once
#include "bench/harness/results.hpp"

namespace crossrank::bench {

/// Prints what memory and processor time whole commands took, and returns the same as rows; those of ours say whether
/// they stay below the limit, and whether the memory stays the same as the model grows.
[[nodiscard]] nlohmann::ordered_json memory_table(Results const& results);

}  // namespace crossrank::bench
