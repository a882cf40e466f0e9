#pragma once
#include <span>
#include <string>
#include <vector>

#include <crossrank/checkpoint.hpp>

#include "workspace/checkpoint/open_sources.hpp"
#include "workspace/checkpoint/shard_source.hpp"

namespace crossrank::checkpoint {

/// Layers and experts that the names of a whole model skip, or that the config has and the names do not.
[[nodiscard]] std::vector<Defect> check_coverage(std::span<std::string const> names, Json const& config,
                                                 std::string const& where);

/// Scales and zero points of one source whose shapes do not fit the weights that they belong to.
[[nodiscard]] std::vector<Defect> check_scales(ShardSource const& source, Json const& config, Json const& quantization);

}  // namespace crossrank::checkpoint
