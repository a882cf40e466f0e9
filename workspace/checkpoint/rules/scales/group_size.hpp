#pragma once
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "workspace/checkpoint/quantization/number_format.hpp"
#include "workspace/checkpoint/rules/scales/resolve_values.hpp"

namespace crossrank::checkpoint {

/// Inputs that share a scale in all INT4 and INT8 layers whose shapes tell; 0 where the config says it, none tells or
/// they differ.
[[nodiscard]] std::int64_t common_group(std::vector<std::unordered_map<std::string_view, LayerTensors>> const& sources,
                                        QuantizationHints const& hints);

/// A layer cut along its inputs of which each rank has a single scale for all of them, where nothing says how large
/// groups are: the scales are one that every rank has, or each is of one group. True for the former; `FormatError` that
/// asks for the size of groups when they differ.
[[nodiscard]] bool share_one_scale(LayerOnRanks const& layer, LayerValues const& values, LayerSharding const& sharding);

}  // namespace crossrank::checkpoint
