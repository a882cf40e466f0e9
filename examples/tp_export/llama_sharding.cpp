#include "llama_sharding.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <stdexcept>

namespace tp_export {
namespace {

constexpr std::string_view layer_prefix = "model.layers.";

[[noreturn]] void refuse(std::string const& why) { throw std::runtime_error(why); }

/// Returns the integer at `key`. A `fallback` below 1 means that the key is required.
std::int64_t count(xr::Json const& config, char const* key, std::int64_t fallback = 0) {
  auto const found = config.find(key);
  if (fallback > 0 && (found == config.end() || found->is_null())) return fallback;
  if (found == config.end()) refuse(std::string("config.json lacks ") + key);
  if (!found->is_number_integer() || *found < 1) refuse(std::string("config.json: ") + key + " is " + found->dump());
  return found->get<std::int64_t>();
}

bool is_llama(xr::Json const& config) {
  auto const found = config.find("architectures");
  return found != config.end() && *found == xr::Json::array({"LlamaForCausalLM"});
}

struct Rule {
  std::string_view name;
  Placement placement;
};

/// The rules for names after "model.layers.<number>.".
constexpr std::array<Rule, 17> layer_rules{{
    {"self_attn.q_proj.weight", Placement::column},
    {"self_attn.q_proj.bias", Placement::column},
    {"self_attn.k_proj.weight", Placement::column},
    {"self_attn.k_proj.bias", Placement::column},
    {"self_attn.v_proj.weight", Placement::column},
    {"self_attn.v_proj.bias", Placement::column},
    {"self_attn.o_proj.weight", Placement::row},
    {"self_attn.o_proj.bias", Placement::replicated},  // added once, after the sum over the ranks
    {"self_attn.rotary_emb.inv_freq", Placement::replicated},
    {"mlp.gate_proj.weight", Placement::column},
    {"mlp.gate_proj.bias", Placement::column},
    {"mlp.up_proj.weight", Placement::column},
    {"mlp.up_proj.bias", Placement::column},
    {"mlp.down_proj.weight", Placement::row},
    {"mlp.down_proj.bias", Placement::replicated},
    {"input_layernorm.weight", Placement::replicated},
    {"post_attention_layernorm.weight", Placement::replicated},
}};

constexpr std::array<Rule, 3> model_rules{{
    {"model.embed_tokens.weight", Placement::column},  // dimension 0 is the vocabulary
    {"model.norm.weight", Placement::replicated},
    {"lm_head.weight", Placement::column},
}};

/// Returns the length of "model.layers.<number>" in `name`, or 0 when the name does not start with a layer below
/// `layers`.
std::size_t layer_length(std::string_view name, std::int64_t layers) {
  if (!name.starts_with(layer_prefix)) return 0;
  std::int64_t layer = 0;
  auto const* const first = name.data() + layer_prefix.size();
  auto const [stop, error] = std::from_chars(first, name.data() + name.size(), layer);
  if (error != std::errc{} || layer < 0 || layer >= layers) return 0;
  return static_cast<std::size_t>(stop - name.data());
}

template <std::size_t N>
Placement find_rule(std::array<Rule, N> const& rules, std::string_view key, std::string_view name) {
  auto const rule = std::find_if(rules.begin(), rules.end(), [&](Rule const& each) { return each.name == key; });
  if (rule == rules.end()) refuse("a Llama with this config has no tensor \"" + std::string(name) + "\"");
  return rule->placement;
}

}  // namespace

LlamaConfig parse_llama_config(xr::Json const& config) {
  if (!config.is_object()) refuse("config.json is not a JSON object");
  if (!is_llama(config)) {
    refuse("config.json: architectures is " + config.value("architectures", xr::Json()).dump() +
           "; only [\"LlamaForCausalLM\"] can be exported");
  }
  LlamaConfig llama;
  llama.layers = count(config, "num_hidden_layers");
  llama.hidden = count(config, "hidden_size");
  llama.heads = count(config, "num_attention_heads");
  llama.kv_heads = count(config, "num_key_value_heads", llama.heads);
  llama.tied = config.value("tie_word_embeddings", xr::Json(false)) == true;
  return llama;
}

LlamaSharding::LlamaSharding(LlamaConfig const& config, int ranks) : config_(config), ranks_(ranks) {
  auto const deal = [&](char const* what, std::int64_t heads) {
    if (heads % ranks == 0) return;
    refuse(std::to_string(heads) + " " + what + " cannot be divided evenly among " + std::to_string(ranks) +
           " ranks: choose a number of ranks that divides them");
  };
  deal("attention heads", config.heads);
  deal("key/value heads", config.kv_heads);
}

Placement LlamaSharding::placement_of(std::string_view name) const {
  if (config_.tied && name == "lm_head.weight") return Placement::dropped;
  if (auto const length = layer_length(name, config_.layers); length > 0 && name.substr(length).starts_with('.')) {
    return find_rule(layer_rules, name.substr(length + 1), name);
  }
  return find_rule(model_rules, name, name);
}

Range LlamaSharding::part_of(std::int64_t length, int rank) const noexcept {
  auto const begin = length * rank / ranks_;
  return {begin, length * (rank + 1) / ranks_ - begin};
}

std::string LlamaSharding::unit_of(std::string_view name) const {
  auto const length = layer_length(name, config_.layers);
  return length > 0 ? std::string(name.substr(0, length)) : "model";
}

}  // namespace tp_export
