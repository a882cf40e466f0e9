#pragma once
#include <cstdint>
#include <map>
#include <string_view>

#include <crossrank/json.hpp>

#include "workspace/checkpoint/model/model_sizes.hpp"

namespace crossrank::checkpoint {

/// Sizes of layers that differ from the other layers of their model. For example, layers with global attention may have
/// longer heads or another number of heads.
class LayerSizes {
 public:
  LayerSizes() = default;
  /// Reads "per_layer_config", "num_attention_heads_per_layer", or the sizes that belong to "layer_types" or
  /// "hybrid_layer_pattern". Ignores values that it does not understand, like `ModelSizes`. Throws `FormatError` only
  /// if the config has too many keys.
  explicit LayerSizes(Json const& config);

  /// Returns the sizes of the layer that a tensor name belongs to, or null if they are those of the model.
  [[nodiscard]] ModelSizes const* of(std::string_view name) const;

 private:
  std::map<std::int64_t, ModelSizes> sizes_{};
};

}  // namespace crossrank::checkpoint
