#include "workspace/checkpoint/quantization/quantization_hints.hpp"

#include <algorithm>

namespace crossrank::checkpoint {
namespace {

constexpr std::int64_t largest_group = 1 << 20;

Json const* member(Json const& object, char const* key) {
  if (!object.is_object()) return nullptr;
  auto const found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::int64_t count(Json const& object, char const* key) {
  auto const* found = member(object, key);
  if (found == nullptr || !found->is_number_integer()) return 0;
  auto const value = found->get<std::int64_t>();
  return value > 0 && value <= largest_group ? value : 0;
}

std::string text(Json const& object, char const* key) {
  auto const* found = member(object, key);
  return found != nullptr && found->is_string() ? found->get<std::string>() : std::string();
}

void read_block(Json const* block, LayerHints& hints) {
  if (block == nullptr || !block->is_array() || block->size() != 2) return;
  auto const& shape = *block;
  if (!shape[0].is_number_integer() || !shape[1].is_number_integer()) return;
  auto const out = shape[0].get<std::int64_t>();
  auto const in = shape[1].get<std::int64_t>();
  if (out < 1 || in < 1 || out > largest_group || in > largest_group) return;
  hints.block_out = out;
  hints.block_in = in;
}

/// Returns whether groups follow the order of activations. The value is a text or, in older versions, a boolean. With
/// "weight" and "static" the groups keep the order of the inputs.
bool follows_activations(Json const& weights) {
  auto const* order = member(weights, "actorder");
  if (order != nullptr && order->is_boolean()) return order->get<bool>();
  auto const configured = text(weights, "actorder");
  return configured == "group" || configured == "dynamic";
}

/// Reads the config groups of compressed-tensors or ModelOpt. Targets of groups may be classes of the program that
/// wrote the weights, so layers of configs with several groups choose by their shapes.
void read_groups(Json const& config, LayerHints& hints) {
  auto const* groups = member(config, "config_groups");
  if (groups == nullptr || !groups->is_object()) return;
  for (auto const& group : *groups) {
    auto const* weights = member(group, "weights");
    if (weights == nullptr) continue;
    WeightPacking const packing{static_cast<int>(count(*weights, "num_bits")), count(*weights, "group_size"),
                                follows_activations(*weights)};
    if (groups->size() == 1) {
      hints.activation_order = hints.activation_order || packing.activation_order;
      if (hints.group == 0) hints.group = packing.group;
      if (hints.bits == 0) hints.bits = packing.bits;
      read_block(member(*weights, "block_structure"), hints);
    } else if (packing.bits > 0 && text(*weights, "type") != "float" &&
               std::ranges::find(hints.packings, packing) == hints.packings.end()) {
      hints.packings.push_back(packing);
    }
  }
}

LayerHints read_hints(Json const& config) {
  LayerHints hints;
  hints.algorithm = text(config, "quant_algo");
  if (hints.algorithm.empty()) hints.algorithm = text(config, "quant_method");
  hints.group = count(config, "group_size");
  if (hints.group == 0) hints.group = count(config, "q_group_size");
  for (auto const* key : {"group_size", "q_group_size"}) {
    auto const* configured = member(config, key);
    hints.whole_inputs =
        hints.whole_inputs || (configured != nullptr && configured->is_number_integer() && *configured == -1);
  }
  hints.bits = static_cast<int>(std::max(count(config, "bits"), count(config, "w_bit")));
  read_block(member(config, "weight_block_size"), hints);
  auto const* order = member(config, "desc_act");
  hints.activation_order = order != nullptr && order->is_boolean() && order->get<bool>();
  read_groups(config, hints);
  return hints;
}

}  // namespace

QuantizationHints::QuantizationHints(Json const& config, Json const& quantization) {
  // ModelOpt's own file has one level of nesting more than config.json. TensorRT-LLM's config has its own key.
  Json const* configured = member(quantization, "quantization");
  if (configured == nullptr && quantization.is_object() && !quantization.empty()) configured = &quantization;
  if (configured == nullptr) configured = member(config, "quantization_config");
  if (configured == nullptr) configured = member(config, "quantization");
  if (configured == nullptr || !configured->is_object()) return;
  all_ = read_hints(*configured);
  auto const* layers = member(*configured, "quantized_layers");
  if (layers == nullptr || !layers->is_object()) return;
  for (auto const& [name, layer] : layers->items()) layers_.insert_or_assign(name, read_hints(layer));
}

LayerHints QuantizationHints::of(std::string_view module) const {
  auto const found = layers_.find(module);
  return found == layers_.end() ? all_ : found->second;
}

}  // namespace crossrank::checkpoint
