#include "workspace/checkpoint/model/layer_sizes.hpp"

#include <array>
#include <charconv>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/text/json_members.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/model/numbered_name.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr std::size_t max_layers = 10'000;
constexpr char const* each_layer = "per_layer_config";
constexpr std::int64_t max_heads = 1'000'000;
/// A key of a layer's size, and the key of that size for layers of the other kind.
using OtherKey = std::pair<char const*, char const*>;
constexpr std::array<OtherKey, 1> of_global_layers{{{"head_dim", "global_head_dim"}}};
constexpr std::array<OtherKey, 4> of_window_layers{{{"num_attention_heads", "swa_num_attention_heads"},
                                                    {"num_key_value_heads", "swa_num_key_value_heads"},
                                                    {"head_dim", "swa_head_dim"},
                                                    {"v_head_dim", "swa_v_head_dim"}}};

template <std::size_t Count>
Json changes(Json const& config, std::array<OtherKey, Count> const& keys) {
  Json changed = Json::object();
  for (auto const& [key, other] : keys) {
    if (auto const found = config.find(other); found != config.end() && found->is_number_integer())
      changed[key] = *found;
  }
  return changed;
}

Json global_changes(Json const& config) {
  auto changed = changes(config, of_global_layers);
  auto const heads = config.find("num_global_key_value_heads");
  // The count is valid only if keys serve as values.
  bool const counts =
      heads != config.end() && heads->is_number_integer() && config.value("attention_k_eq_v", Json()) == true;
  if (counts) changed["num_key_value_heads"] = *heads;
  return changed;
}

using Changes = std::map<std::int64_t, Json>;

Changes listed(Json const& list, Json const& kind, Json const& changed) {
  Changes all;
  if (!list.is_array() || list.size() > max_layers || changed.empty()) return all;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] == kind) all.emplace(static_cast<std::int64_t>(i), changed);
  }
  return all;
}

Changes changes_of_layers(Json const& config) {
  Changes all;
  if (auto const each = config.find(each_layer); each != config.end() && each->is_object()) {
    for (auto const& [key, value] : each->items()) {
      std::int64_t layer = -1;
      auto const [end, bad] = std::from_chars(key.data(), key.data() + key.size(), layer);
      if (bad == std::errc() && end == key.data() + key.size() && value.is_object() && all.size() < max_layers)
        all.emplace(layer, value);
    }
    return all;
  }
  if (auto const heads = config.find("num_attention_heads_per_layer"); heads != config.end() && heads->is_array()) {
    for (std::size_t i = 0; i < heads->size() && i < max_layers; ++i) {
      if ((*heads)[i].is_number_integer())
        all.emplace(static_cast<std::int64_t>(i), Json{{"num_attention_heads", (*heads)[i]}});
    }
    return all;
  }
  if (auto const kinds = config.find("hybrid_layer_pattern"); kinds != config.end())
    return listed(*kinds, 1, changes(config, of_window_layers));
  auto const kinds = config.find("layer_types");
  // Sliding-window layers have twice as many heads. The newer config of this model gives the number of one kind only.
  if (auto const heads = config.find("num_key_value_heads"); kinds != config.end() && heads != config.end() &&
                                                             heads->is_number_integer() &&
                                                             config.value("model_type", Json()) == "mimo_v2_flash") {
    auto const count = heads->get<std::int64_t>();
    if (count > 0 && count <= max_heads)
      return listed(*kinds, "sliding_attention", Json{{"num_key_value_heads", 2 * count}});
  }
  if (kinds != config.end()) return listed(*kinds, "full_attention", global_changes(config));
  return all;
}

/// Returns the config without lists and per-layer sizes. Each layer gets a copy of it, and lists hold no sizes.
Json without_lists(Json const& config) {
  Json kept = Json::object();
  for (auto const& [key, value] : config.items()) {
    if (!value.is_array() && key != each_layer) append_member(kept, key, value);
  }
  return kept;
}

/// Limits the work for a config with many layers and many keys.
void require_few_keys(Json const& config, Changes const& layers) {
  constexpr std::size_t max_work = 20'000'000;
  std::size_t keys = 0;
  for (auto const& [layer, changed] : layers) keys += changed.size();
  auto const work = (keys + layers.size()) * config.size();
  if (work <= max_work) return;
  throw FormatError({.operation = "checkpoint open",
                     .message = "the config has too many keys for sizes that differ between layers",
                     .expected = "at most " + std::to_string(max_work / (keys + layers.size())),
                     .got = std::to_string(config.size()) + " keys and " + std::to_string(layers.size()) + " layers",
                     .resource = "config.json",
                     .hint = "remove keys that do not describe the model",
                     .section = to_string(ErrorSection::config)});
}

}  // namespace

LayerSizes::LayerSizes(Json const& whole) {
  if (!whole.is_object()) return;
  auto const& config = language_config(whole);
  auto const layers = changes_of_layers(config);
  if (layers.empty()) return;
  auto const common = without_lists(config);
  require_few_keys(common, layers);
  for (auto const& [layer, changed] : layers) {
    auto own = common;
    for (auto const& [key, value] : changed.items()) own[key] = value;
    sizes_.emplace(layer, ModelSizes(own));
  }
}

ModelSizes const* LayerSizes::of(std::string_view name) const {
  if (sizes_.empty()) return nullptr;
  auto const layer = find_layer(name);
  if (!layer) return nullptr;
  auto const found = sizes_.find(layer->number);
  return found == sizes_.end() ? nullptr : &found->second;
}

}  // namespace crossrank::checkpoint
