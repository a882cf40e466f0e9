#pragma once
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// Finds the layers of one source whose weights are quantized and which lack a scale that their format needs: packed or
/// FP8 weights without a weight scale, and NVFP4 weights without the scale of their scales.
[[nodiscard]] std::vector<Defect> check_missing_scales(ShardSource const& source, Json const& config,
                                                       Json const& quantization);

}  // namespace crossrank::checkpoint
