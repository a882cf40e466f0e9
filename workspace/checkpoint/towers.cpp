#include "workspace/checkpoint/towers.hpp"

#include <algorithm>
#include <initializer_list>

#include "workspace/checkpoint/cut_decision.hpp"
#include "workspace/checkpoint/rule_pattern.hpp"

namespace crossrank::checkpoint {
namespace {

ModelSizes sizes_in(Json const& config, char const* key) {
  auto const found = config.find(key);
  return found != config.end() ? ModelSizes(*found) : ModelSizes();
}

bool stands_in(std::string_view module, std::initializer_list<std::string_view> names) {
  auto const elements = split_name(module);
  return std::any_of(elements.begin(), elements.end(),
                     [&](auto element) { return std::find(names.begin(), names.end(), element) != names.end(); });
}

}  // namespace

Towers::Towers(Json const& config)
    : vision_(sizes_in(config, "vision_config")), audio_(sizes_in(config, "audio_config")) {}

ModelSizes const* Towers::sizes_of(std::string_view module) const {
  if (stands_in(module, {"vision_tower", "vision_model", "visual"})) return &vision_;
  if (stands_in(module, {"audio_tower", "audio_model"})) return &audio_;
  return nullptr;
}

bool Towers::can_apply(LayerRule const& rule, ModelSizes const& sizes) {
  if (rule.from_file || rule.cut == Cut::replicate) return true;
  auto const known = [&](RuleSize const& size) { return resolve(size, sizes).has_value(); };
  if (rule.cut == Cut::row) return rule.inputs && known(*rule.inputs);
  return !rule.parts.empty() && std::all_of(rule.parts.begin(), rule.parts.end(), known);
}

}  // namespace crossrank::checkpoint
