#pragma once
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// Finds the quantized layers of one source that lack a scale: packed or FP8 weights without a weight scale, and NVFP4
/// weights without a global scale.
[[nodiscard]] std::vector<Defect> check_missing_scales(ShardSource const& source, Json const& config,
                                                       Json const& quantization);

}  // namespace crossrank::checkpoint
