#pragma once
#include <nlohmann/json.hpp>

namespace crossrank::bench {

/// Prints what operations on GPU tensors ask of the GPU, and on real GPUs their times, and returns the same as rows.
/// The rows that have limits say whether they keep them. A count is the largest of all ranks.
[[nodiscard]] nlohmann::ordered_json device_table(nlohmann::ordered_json const& rows);

}  // namespace crossrank::bench
