#include "workspace/checkpoint/model/model_names.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "workspace/checkpoint/model/model_families.hpp"
#include "workspace/checkpoint/model/model_sizes.hpp"
#include "workspace/checkpoint/model/numbered_name.hpp"
#include "workspace/checkpoint/model/name_pattern.hpp"
#include "workspace/checkpoint/model/tensor_role.hpp"

namespace crossrank::checkpoint {
namespace {

std::vector<std::string_view> split_at(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    auto const end = std::min(text.find(separator), text.size());
    auto part = text.substr(0, end);
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    if (!part.empty()) parts.push_back(part);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

/// Expands "{q,k}_proj" to "q_proj" and "k_proj".
void expand(std::string_view text, std::set<std::string>& names) {
  auto const open = text.find('{');
  if (open == std::string_view::npos) {
    names.emplace(text);
    return;
  }
  auto const close = text.find('}', open);
  for (auto const choice : split_at(text.substr(open + 1, close - open - 1), ',')) {
    expand(std::string(text.substr(0, open)) + std::string(choice) + std::string(text.substr(close + 1)), names);
  }
}

std::set<std::string> names_in(std::string_view text) {
  std::set<std::string> names;
  for (auto const word : split_at(text, ' ')) expand(word, names);
  return names;
}

ModelFamily const* find_model_family(std::string_view type) {
  for (auto const& family : model_families()) {
    auto const types = split_at(family.types, ' ');
    if (std::find(types.begin(), types.end(), type) != types.end()) return &family;
  }
  return nullptr;
}

/// Returns whether the model has an output head that is not tied to the embedding.
bool has_head(Json const& config, ModelFamily const& family) {
  auto const tied = config.find("tie_word_embeddings");
  if (tied != config.end() && tied->is_boolean() ? tied->get<bool>() : family.tied_by_default) return false;
  auto const classes = config.find("architectures");
  if (classes == config.end() || !classes->is_array() || classes->empty() || !classes->front().is_string())
    return false;
  return classes->front().get<std::string>().ends_with("ForCausalLM");
}

bool refuses_bias(Json const& config, ModelFamily const& family) {
  auto const keys = split_at(family.refuses_bias, ' ');
  return std::any_of(keys.begin(), keys.end(), [&](auto const key) {
    auto const found = config.find(key);
    return found != config.end() && *found == false;
  });
}

/// Returns whether the check ignores a name: buffers that older versions saved, and caches of quantized models.
bool is_ignored(std::string_view name) {
  for (std::string_view const part :
       {"rotary_emb", "masked_bias", "_extra_state", ".attn.", "kv_cache", "quantizer", ".act", "lora_"}) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  return false;
}

struct Fusion {
  std::string_view fused;
  std::array<std::string_view, 3> parts;
};

constexpr std::array<Fusion, 3> fusions{{
    {"qkv_proj", {"q_proj", "k_proj", "v_proj"}},
    {"gate_up_proj", {"gate_proj", "up_proj", ""}},
    {"fused_qkv_a_proj", {"q_a_proj", "kv_a_proj_with_mqa", ""}},
}};

std::string count_text(std::int64_t count) { return std::to_string(count) + (count == 1 ? " layer" : " layers"); }

}  // namespace

ModelNames::ModelNames(Json const& config) {
  if (!config.is_object()) return;
  ModelSizes const sizes(config);
  auto const* const family = find_model_family(sizes.model_type());
  if (family == nullptr) return;
  type_ = sizes.model_type();
  layers_ = sizes[SizeName::layers].value_or(0);
  quantized_ = config.contains("quantization_config");
  for (auto const text : split_at(family->layer, ';')) {
    Group group{.optional = text.starts_with('?')};
    for (auto const alternative : split_at(group.optional ? text.substr(1) : text, '|')) {
      group.alternatives.push_back(names_in(alternative));
      all_.insert(group.alternatives.back().begin(), group.alternatives.back().end());
    }
    layer_.push_back(std::move(group));
  }
  if (!refuses_bias(config, *family)) biased_ = names_in(family->biased);
  // Models with further parts use other names for their language model.
  if (config.contains("text_config") || config.contains("llm_config") || config.contains("vision_config")) return;
  before_ = family->before;
  top_ = names_in(family->top);
  if (has_head(config, *family)) head_ = family->head;
}

bool ModelNames::has(std::string_view module_of_layer) const { return all_.contains(generalized(module_of_layer)); }

std::vector<std::string> ModelNames::parts_of(std::string_view module) const {
  auto const layer = find_layer(module);
  if (!known() || !layer || !layer->after.starts_with('.')) return {};
  auto const behind = layer->after.substr(1);
  if (all_.contains(generalized(behind))) return {};
  auto const last = behind.rfind('.') + 1;
  for (auto const& fusion : fusions) {
    if (behind.substr(last) != fusion.fused) continue;
    std::vector<std::string> parts;
    for (auto const part : fusion.parts) {
      if (part.empty()) continue;
      auto name = std::string(behind.substr(0, last)) + std::string(part);
      if (!all_.contains(generalized(name))) return {};
      parts.push_back(std::string(module.substr(0, module.size() - behind.size())) + name);
    }
    return parts;
  }
  return {};
}

std::string ModelNames::stack_name(std::string_view name) const {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 2> stacks{
      {{"experts.w13_weight", "experts.gate_up_proj"}, {"experts.w2_weight", "experts.down_proj"}}};
  auto const layer = find_layer(name);
  if (!known() || !layer || !layer->after.starts_with('.')) return {};
  // These models store the transposed matrices, which vLLM turns.
  if (type_ == "gpt_oss" || type_.starts_with("llama4")) return {};
  for (auto const& [theirs, ours] : stacks) {
    if (!name.ends_with(theirs)) continue;
    auto const behind = layer->after.substr(1);
    auto own = std::string(behind.substr(0, behind.size() - theirs.size())) + std::string(ours);
    if (all_.contains(own)) return std::string(name.substr(0, name.size() - behind.size())) + own;
  }
  return {};
}

/// Returns the number of the decoder layer of a module, and the rest of its name in `behind`. Names lack their first
/// element if the model was saved without its head.
std::optional<std::int64_t> ModelNames::layer_of(std::string_view module, std::string_view& behind) const {
  auto const layer = find_layer(module);
  if (!layer || !layer->after.starts_with('.')) return std::nullopt;
  auto const bare = std::string_view(before_).substr(before_.find('.') + 1);
  if (layer->before != before_ && layer->before != bare) return std::nullopt;
  if (layers_ > 0 && layer->number >= layers_) return std::nullopt;
  behind = layer->after.substr(1);
  return layer->number;
}

/// Returns the layer that a module of a quantized model belongs to: quantizers keep their values under names of their
/// own, such as down_proj.weight.absmax or down_proj.W_q. Returns other modules unchanged.
std::string ModelNames::layer_that_has(std::string module) const {
  if (!quantized_ || all_.contains(module)) return module;
  for (auto dot = module.rfind('.'); dot != std::string::npos && dot > 0; dot = module.rfind('.', dot - 1)) {
    if (auto above = module.substr(0, dot); all_.contains(above)) return above;
  }
  return module;
}

void ModelNames::find_missing_names(std::map<std::int64_t, Names> const& layers,
                                    std::map<std::string, std::int64_t>& lacks) const {
  for (auto const& [number, names] : layers) {
    for (auto const& group : layer_) {
      if (group.optional) continue;
      Names least;
      bool first = true;
      for (auto const& alternative : group.alternatives) {
        Names missing;
        std::set_difference(alternative.begin(), alternative.end(), names.begin(), names.end(),
                            std::inserter(missing, missing.end()));
        if (first || missing.size() < least.size()) least = std::move(missing);
        first = false;
      }
      for (auto const& name : least) ++lacks[name];
    }
  }
}

void ModelNames::find_missing_biases(std::map<std::int64_t, Names> const& layers,
                                     std::map<std::int64_t, Names> const& biases,
                                     std::map<std::string, std::int64_t>& lacks) const {
  for (auto const& [number, names] : layers) {
    auto const found = biases.find(number);
    for (auto const& name : biased_) {
      bool const has_bias = found != biases.end() && found->second.contains(name);
      if (names.contains(name) && !has_bias) ++lacks[name + ".bias"];
    }
  }
}

void ModelNames::check_top(Names const& modules, std::string const& where, std::vector<Defect>& defects) const {
  auto wanted = top_;
  if (!head_.empty()) wanted.insert(head_);
  for (auto const& name : wanted) {
    auto const bare = name.substr(name.find('.') + 1);
    if (modules.contains(name) || modules.contains(bare)) continue;
    defects.push_back({DefectKind::coverage, name, "missing: models of type " + type_ + " have it",
                       "check that " + where + " is the whole model, and that config.json belongs to it"});
  }
}

/// Returns what comes before the usual names of layers, such as "module." of DistributedDataParallel.
std::string ModelNames::foreign_prefix(Names const& modules) const {
  for (auto const& module : modules) {
    auto const layer = find_layer(module);
    if (layer && layer->before.ends_with("." + before_))
      return std::string(layer->before.substr(0, layer->before.size() - before_.size()));
  }
  return {};
}

std::vector<Defect> ModelNames::check(std::span<std::string const> names, std::string const& where) const {
  std::vector<Defect> defects;
  if (before_.empty()) return defects;
  std::map<std::int64_t, Names> layers;
  std::map<std::int64_t, Names> biases;
  std::map<std::string, std::int64_t> others;
  Names modules;
  std::set<std::pair<std::int64_t, std::string>> seen;
  for (auto const& name : names) {
    auto const parsed = parse_tensor_name(name);
    auto const module = parsed.module;
    // A scale or a bias does not make a layer complete.
    bool const is_weight = parsed.role == TensorRole::weight;
    if (is_weight) modules.emplace(module);
    std::string_view behind;
    auto const layer = layer_of(module, behind);
    if (!layer || is_ignored(name) || parsed.role == TensorRole::cache_scale) continue;
    auto const known = layer_that_has(generalized(behind));
    if (parsed.role == TensorRole::bias) biases[*layer].insert(known);
    auto& present = layers[*layer];
    if (is_weight) present.insert(known);
    if (seen.emplace(*layer, known).second && !all_.contains(known)) ++others[known];
  }
  std::map<std::string, std::int64_t> lacks;
  find_missing_names(layers, lacks);
  find_missing_biases(layers, biases, lacks);
  for (auto const& [name, count] : lacks) {
    defects.push_back({DefectKind::coverage, before_ + "*." + name,
                       "missing in " + count_text(count) + ": models of type " + type_ + " have it",
                       "copy the missing shard to the directory, or save the model again"});
  }
  for (auto const& [name, count] : others) {
    defects.push_back({DefectKind::coverage, before_ + "*." + name,
                       "in " + count_text(count) + ", but models of type " + type_ + " have no such layer",
                       "check that config.json belongs to this model, or rename the layer with `rules`"});
  }
  if (!layers.empty()) {
    check_top(modules, where, defects);
  } else if (auto const prefix = foreign_prefix(modules); !prefix.empty()) {
    defects.push_back({DefectKind::coverage, prefix + before_ + "*",
                       "models of type " + type_ + " have no \"" + prefix + "\" before the names of their layers",
                       "save the model without its wrapper, or rename the tensors with `rules`"});
  }
  return defects;
}

std::vector<Defect> check_fused_layers(std::span<std::string const> names, Json const& config) {
  for (auto const& name : names) {
    auto const module = parse_tensor_name(name).module;
    auto const last = module.substr(module.rfind('.') + 1);
    bool const fused = std::any_of(fusions.begin(), fusions.end(), [&](auto const& one) { return one.fused == last; });
    if (!fused || !find_layer(name) || module.find("experts") != std::string_view::npos) continue;
    auto const type = ModelSizes(config).model_type();
    return {{DefectKind::coverage, name,
             "fused, but it is unknown whether models of type \"" + type +
                 "\" have this fused layer: a loader that looks for its parts does not find them",
             "compare with the names of the original model"}};
  }
  return {};
}

std::vector<Defect> check_stacked_layers(std::span<std::string const> names) {
  static constexpr std::array<std::string_view, 7> of_a_layer{
      "self_attention", "cross_attention", "mlp", "input_layernorm", "pre_mlp_layernorm", "mixer", "self_attn"};
  std::vector<std::string_view> stacked;
  for (auto const& name : names) {
    auto const elements = split_name(name);
    for (std::size_t i = 0; i + 1 < elements.size(); ++i) {
      bool const holds_all = elements[i] == "layers" &&
                             std::find(of_a_layer.begin(), of_a_layer.end(), elements[i + 1]) != of_a_layer.end();
      if (holds_all) stacked.push_back(name);
    }
  }
  if (stacked.empty()) return {};
  return {{DefectKind::coverage, std::string(stacked.front()),
           "the layers of the model are stacked in " + std::to_string(stacked.size()) +
               (stacked.size() == 1 ? " tensor" : " tensors") +
               " and stay stacked, because their lengths do not tell the layers apart: loaders of single layers do not "
               "find them",
           "save it with a tensor for each layer: set hetereogenous_dist_checkpoint of Megatron-core's config"}};
}

}  // namespace crossrank::checkpoint
