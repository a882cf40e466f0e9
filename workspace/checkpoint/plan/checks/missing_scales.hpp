#pragma once
#include <span>
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// Finds the quantized layers that lack a scale: packed or FP8 weights without a weight scale, and NVFP4 weights
/// without a global scale. `where` is the file or directory of the tensors, for the texts.
[[nodiscard]] std::vector<Defect> check_missing_scales(std::span<SourceTensor const> tensors, std::string const& where,
                                                       Json const& config, Json const& quantization);

}  // namespace crossrank::checkpoint
