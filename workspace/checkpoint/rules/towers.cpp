#include "workspace/checkpoint/rules/towers.hpp"

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "lib/core/overloads.hpp"
#include "workspace/checkpoint/model/name_pattern.hpp"

namespace crossrank::checkpoint {
namespace {

ModelSizes sizes_in(Json const& config, char const* key) {
  auto const found = config.find(key);
  return found != config.end() ? ModelSizes(*found) : ModelSizes();
}

bool has_element(std::string_view module, bool (*applies_to_model)(std::string_view)) {
  auto const elements = split_name(module);
  return std::any_of(elements.begin(), elements.end(), applies_to_model);
}

bool holds_any(std::string_view element, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](auto word) { return element.find(word) != std::string_view::npos; });
}

bool speaks_of_sound(std::string_view element) { return holds_any(element, {"audio", "speech"}); }

bool speaks_of_images(std::string_view element) {
  return element == "vit" || element == "sam_model" || element == "connector" || element == "merger" ||
         element == "aligner" ||
         holds_any(element, {"vision", "visual", "image", "video", "qformer", "resampler", "projector"});
}

}  // namespace

Towers::Towers(Json const& config)
    : vision_(sizes_in(config, "vision_config")), audio_(sizes_in(config, "audio_config")) {}

bool Towers::contain(std::string_view module) {
  return has_element(module, speaks_of_sound) || has_element(module, speaks_of_images);
}

ModelSizes const* Towers::sizes_of(std::string_view module) const {
  if (has_element(module, speaks_of_sound)) return &audio_;
  if (has_element(module, speaks_of_images)) return &vision_;
  return nullptr;
}

std::vector<std::string_view> tower_patterns() {
  return {
      "**.{*vision*,*visual*,*image*,*video*,*audio*,*speech*,*qformer*,*resampler*}.**",
      "**.{vit,sam_model,*projector,connector,merger,aligner,modality_projection,language_projection,mlp1,mlp_AR}.**",
      "**.patch_merge_mlp.**"};
}

bool Towers::can_apply(LayerRule const& rule, ModelSizes const& sizes) {
  // A rule for named models was written for their towers.
  if (rule.from_file || !rule.models.empty()) return true;
  auto const known = [&](std::optional<RuleSize> const& size) { return resolve(size, sizes).has_value(); };
  return std::visit(Overloads{[&](ColumnLayer const& layer) {
                                return !layer.parts.empty() &&
                                       std::all_of(layer.parts.begin(), layer.parts.end(), known);
                              },
                              [&](RowLayer const& layer) { return known(layer.inputs); },
                              [&](VocabularyLayer const& layer) { return known(layer.tokens); },  //
                              [](auto const&) { return true; }},
                    rule.kind);
}

}  // namespace crossrank::checkpoint
