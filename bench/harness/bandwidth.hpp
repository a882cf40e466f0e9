#pragma once
#include <nlohmann/json.hpp>

#include "bench/harness/results.hpp"

namespace crossrank::bench {

/// Prints the bandwidths of collectives, ours and the peers', as nccl-tests counts them: bytes of the whole for the
/// algorithm, bytes that must cross between ranks for the bus.
[[nodiscard]] nlohmann::ordered_json bandwidth_table(Results const& results);

}  // namespace crossrank::bench
