#pragma once
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "workspace/checkpoint/quantization/number_format.hpp"
#include "workspace/checkpoint/rules/scales/resolve_values.hpp"

namespace crossrank::checkpoint {

/// Returns the number of inputs that share a scale in all INT4 and INT8 layers whose shapes give it; 0 if the config
/// gives it, if no shape does, or if they differ.
[[nodiscard]] std::int64_t common_group(std::vector<std::unordered_map<std::string_view, LayerTensors>> const& sources,
                                        QuantizationHints const& hints);

/// Decides for a row-parallel layer with a single scale per rank and unknown group size whether the scales are replicas
/// (true) or belong to one group each. `FormatError` asks for the group size when the scales differ.
[[nodiscard]] bool share_one_scale(LayerOnRanks const& layer, LayerValues const& values, LayerSharding const& sharding);

}  // namespace crossrank::checkpoint
