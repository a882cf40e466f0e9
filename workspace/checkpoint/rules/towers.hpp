#pragma once
#include <string_view>
#include <vector>

#include "workspace/checkpoint/rules/layer_rule.hpp"
#include "workspace/checkpoint/model/model_sizes.hpp"

namespace crossrank::checkpoint {

/// Patterns of the names in encoders of images and sound and in what joins them to the language model.
[[nodiscard]] std::vector<std::string_view> tower_patterns();

/// What a model has beside its language model: encoders of images and sound, whose layers are called like the language
/// model's and have other sizes.
class Towers {
 public:
  Towers() = default;
  /// Reads "vision_config" and "audio_config".
  explicit Towers(Json const& config);

  /// The sizes of the tower that the module is in; null when it is in none.
  [[nodiscard]] ModelSizes const* sizes_of(std::string_view module) const;
  /// Whether a rule can be held against a tower's config. Where not, the ranks can only have copies.
  [[nodiscard]] static bool can_apply(LayerRule const& rule, ModelSizes const& sizes);

 private:
  ModelSizes vision_{};
  ModelSizes audio_{};
};

}  // namespace crossrank::checkpoint
