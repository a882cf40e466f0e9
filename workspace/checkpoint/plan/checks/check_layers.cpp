#include "workspace/checkpoint/plan/checks/check_layers.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "workspace/checkpoint/model/model_names.hpp"
#include "workspace/checkpoint/model/name_pattern.hpp"
#include "workspace/checkpoint/model/tensor_role.hpp"
#include "workspace/checkpoint/plan/checks/check_model.hpp"

namespace crossrank::checkpoint {
namespace {

/// A layer with the first two matrices needs the third.
struct Partners {
  std::string_view first;
  std::string_view second;
  std::string_view third;
};

// A gate multiplies an up projection, and both lead to a down projection. Models without a gate have up and down only.
constexpr std::array<Partners, 8> partners{{
    {"gate_proj", "down_proj", "up_proj"},
    {"gate_proj", "up_proj", "down_proj"},
    {"gate_proj", "gate_proj", "up_proj"},
    {"gate_up_proj", "gate_up_proj", "down_proj"},
    {"w1", "w3", "w2"},
    {"w2", "w3", "w1"},
    {"linear_fc1", "linear_fc1", "linear_fc2"},
    {"linear_fc2", "linear_fc2", "linear_fc1"},
}};

/// Returns the children of each module that have a weight.
std::map<std::string_view, std::set<std::string_view>> children_of(std::span<std::string const> names) {
  std::map<std::string_view, std::set<std::string_view>> children;
  for (auto const& name : names) {
    auto const parsed = parse_tensor_name(name);
    if (parsed.role != TensorRole::weight) continue;
    auto const dot = parsed.module.rfind('.');
    if (dot != std::string_view::npos) children[parsed.module.substr(0, dot)].insert(parsed.module.substr(dot + 1));
  }
  return children;
}

/// Returns whether it is the embedding or the head of the model in the config, and not of a model beside it.
bool is_vocabulary(std::string_view name) {
  constexpr std::array<std::string_view, 8> modules{"embed_tokens",   "lm_head",        "wte",
                                                    "embed_in",       "embed_out",      "vocab_embedding",
                                                    "tok_embeddings", "word_embeddings"};
  constexpr std::array<std::string_view, 9> parents{"",
                                                    "model",
                                                    "transformer",
                                                    "language_model",
                                                    "language_model.model",
                                                    "model.language_model",
                                                    "model.decoder",
                                                    "decoder",
                                                    "gpt_neox"};
  auto const parsed = parse_tensor_name(name);
  if (parsed.role != TensorRole::weight) return false;
  auto const dot = parsed.module.rfind('.');
  auto const parent = dot == std::string_view::npos ? std::string_view() : parsed.module.substr(0, dot);
  auto const module = parsed.module.substr(dot == std::string_view::npos ? 0 : dot + 1);
  return std::find(modules.begin(), modules.end(), module) != modules.end() &&
         std::find(parents.begin(), parents.end(), parent) != parents.end();
}

/// Returns false for packed matrices, whose rows are not tokens.
bool has_a_row_per_token(Dtype dtype) {
  return dtype != Dtype::i32 && dtype != Dtype::u32 && dtype != Dtype::u8 && dtype != Dtype::i8;
}

/// Returns whether the tensor describes a weight beside it. AutoAWQ also scales activations, with `scales` alone.
bool describes_weight(TensorName const& name) {
  switch (name.role) {
    case TensorRole::weight_scale: return name.suffix != ".scales";
    case TensorRole::weight_scale_2:
    case TensorRole::global_scale:
    case TensorRole::zeros: return true;
    default: return false;
  }
}

}  // namespace

std::vector<Defect> check_partners(std::span<std::string const> names) {
  std::vector<Defect> defects;
  for (auto const& [module, there] : children_of(names)) {
    std::set<std::string_view> lacking;
    // The gate of an attention multiplies its output, and no other matrix belongs to it.
    bool const is_attention = there.contains("q_proj");
    for (auto const& [first, second, third] : partners) {
      if (is_attention && first == "gate_proj") continue;
      if (there.contains(first) && there.contains(second) && !there.contains(third)) lacking.insert(third);
    }
    for (auto const part : lacking) {
      std::string beside;
      for (auto const child : there) beside += (beside.empty() ? "" : ", ") + std::string(child);
      defects.push_back({DefectKind::coverage, std::string(module) + "." + std::string(part),
                         "missing, and it belongs to " + beside,
                         "copy the missing shard there, or save the model again"});
    }
  }
  return defects;
}

std::vector<Defect> check_missing_tensors(std::span<std::string const> names) {
  auto lacks = check_siblings(names);
  // `check_siblings` names the tensor, `check_partners` its layer.
  std::set<std::string, std::less<>> modules;
  for (auto const& lack : lacks) modules.emplace(parse_tensor_name(lack.resource).module);
  for (auto& lack : check_partners(names)) {
    if (!modules.contains(lack.resource)) lacks.push_back(std::move(lack));
  }
  return lacks;
}

std::vector<Defect> check_scales_without_weights(std::span<std::string const> names) {
  std::set<std::string_view> weights;
  std::set<std::string_view> described;
  for (auto const& name : names) {
    auto const parsed = parse_tensor_name(name);
    if (parsed.role == TensorRole::weight) weights.insert(parsed.module);
    if (describes_weight(parsed)) described.insert(parsed.module);
  }
  std::map<std::string, std::size_t> lacking;
  for (auto const module : described) {
    if (weights.contains(module)) continue;
    // Some quantizers keep their values under names of their own, such as q_proj.codes.
    auto const below = std::string(module) + ".";
    auto const child = weights.lower_bound(below);
    if (child == weights.end() || !child->starts_with(below)) ++lacking[generalized(module)];
  }
  std::vector<Defect> defects;
  for (auto const& [layer, count] : lacking) {
    defects.push_back({DefectKind::coverage, layer,
                       std::to_string(count) + (count == 1 ? " layer has" : " layers have") + " a scale and no weight",
                       "copy the missing shard to the directory, or save the model again"});
  }
  return defects;
}

std::vector<Defect> check_layer_names(std::span<std::string const> names, Json const& config,
                                      std::string const& where) {
  auto defects = ModelNames(config).check(names, where);
  std::set<std::string> known;
  for (auto const& defect : defects) known.insert(defect.resource);
  for (auto& lack : check_scales_without_weights(names)) {
    if (!known.contains(lack.resource)) defects.push_back(std::move(lack));
  }
  return defects;
}

std::vector<Defect> check_vocabulary(std::span<MergedTensor const> tensors, ModelSizes const& sizes) {
  std::vector<Defect> defects;
  auto const tokens = sizes[SizeName::vocabulary];
  if (!tokens) return defects;
  for (auto const& tensor : tensors) {
    if (tensor.shape.size() != 2 || !has_a_row_per_token(tensor.dtype) || !is_vocabulary(tensor.name)) continue;
    if (tensor.shape[0] >= *tokens) continue;
    defects.push_back(
        {DefectKind::shape, tensor.name,
         std::to_string(tensor.shape[0]) + " rows, and the config has a vocab_size of " + std::to_string(*tokens),
         "copy the missing shard there, or correct the config"});
  }
  return defects;
}

}  // namespace crossrank::checkpoint
