#pragma once
#include <cstdint>
#include <map>
#include <string_view>

#include <crossrank/json.hpp>

#include "workspace/checkpoint/model/model_sizes.hpp"

namespace crossrank::checkpoint {

/// Sizes of the layers that differ from the rest of their model: longer heads, or another number of them, where
/// attention is global.
class LayerSizes {
 public:
  LayerSizes() = default;
  /// Reads "per_layer_config", or what stands beside "layer_types" or "hybrid_layer_pattern". Free of errors, as
  /// `ModelSizes`.
  explicit LayerSizes(Json const& config);

  /// The sizes of the layer that a name of the whole model belongs to; null when they are the model's.
  [[nodiscard]] ModelSizes const* of(std::string_view name) const;

 private:
  std::map<std::int64_t, ModelSizes> sizes_{};
};

}  // namespace crossrank::checkpoint
