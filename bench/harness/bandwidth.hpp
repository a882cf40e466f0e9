#pragma once
#include <nlohmann/json.hpp>

#include "bench/harness/results.hpp"

namespace crossrank::bench {

/// Prints the bandwidths of our collectives and of the peers', as defined by nccl-tests: the algorithm bandwidth counts
/// the bytes of the whole, the bus bandwidth the bytes that must cross between ranks.
[[nodiscard]] nlohmann::ordered_json bandwidth_table(Results const& results);

}  // namespace crossrank::bench
