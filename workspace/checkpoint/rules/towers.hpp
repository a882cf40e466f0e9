#pragma once
#include <string_view>
#include <vector>

#include "workspace/checkpoint/rules/layer_rule.hpp"
#include "workspace/checkpoint/model/model_sizes.hpp"

namespace crossrank::checkpoint {

/// Returns patterns of the names in image and audio encoders and in the layers that connect them to the language model.
[[nodiscard]] std::vector<std::string_view> tower_patterns();

/// The image and audio encoders of a model. Their layers have the same names as those of the language model, and other
/// sizes.
class Towers {
 public:
  Towers() = default;
  /// Reads "vision_config" and "audio_config".
  explicit Towers(Json const& config);

  /// Returns whether a module belongs to an encoder or connects one, by its name.
  [[nodiscard]] static bool contain(std::string_view module);
  /// Returns the sizes of the tower that contains the module, or null if no tower does.
  [[nodiscard]] ModelSizes const* sizes_of(std::string_view module) const;
  /// Returns whether the tower's config has the sizes of a rule, or the rule names its models. If neither, the ranks
  /// can only have replicas.
  [[nodiscard]] static bool can_apply(LayerRule const& rule, ModelSizes const& sizes);

 private:
  ModelSizes vision_{};
  ModelSizes audio_{};
};

}  // namespace crossrank::checkpoint
