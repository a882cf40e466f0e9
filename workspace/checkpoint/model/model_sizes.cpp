#include "workspace/checkpoint/model/model_sizes.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

namespace crossrank::checkpoint {
namespace {

constexpr std::int64_t largest = std::int64_t{1} << 40;

/// A size in quotes would count as unknown, and a merge would then decide otherwise.
[[noreturn]] void refuse_quoted(std::string const& key, Json const& value) {
  throw FormatError({.operation = "read the sizes of the model",
                     .message = "the config has a number in quotes",
                     .expected = '"' + key + "\": " + value.get<std::string>(),
                     .got = '"' + key + "\": " + value.dump(),
                     .resource = "config.json",
                     .hint = "remove the quotes",
                     .section = "json"});
}

std::optional<std::int64_t> count(Json const& config, std::initializer_list<char const*> keys) {
  for (auto const* key : keys) {
    auto const found = config.find(key);
    if (found == config.end()) continue;
    if (is_quoted_number(*found)) refuse_quoted(key, *found);
    if (!found->is_number_integer()) continue;
    if (found->is_number_unsigned() && found->get<std::uint64_t>() > static_cast<std::uint64_t>(largest)) continue;
    auto const value = found->get<std::int64_t>();
    if (value > 0 && value <= largest) return value;
  }
  return std::nullopt;
}

/// Returns the value that encoder and decoder have in common, or nothing if they differ.
std::optional<std::int64_t> agreed(Json const& config, char const* first, char const* second) {
  auto const a = count(config, {first});
  auto const b = count(config, {second});
  if (a && b && *a != *b) return std::nullopt;
  return a ? a : b;
}

std::optional<bool> flag(Json const& config, char const* key) {
  auto const found = config.find(key);
  if (found == config.end() || !found->is_boolean()) return std::nullopt;
  return found->get<bool>();
}

std::string text(Json const& config, std::initializer_list<char const*> keys) {
  for (auto const* key : keys) {
    auto const found = config.find(key);
    if (found != config.end() && found->is_string()) return found->get<std::string>();
  }
  return {};
}

std::optional<std::int64_t> product(std::optional<std::int64_t> a, std::optional<std::int64_t> b) {
  std::int64_t result = 0;
  if (!a || !b || __builtin_mul_overflow(*a, *b, &result) || result > largest) return std::nullopt;
  return result;
}

std::optional<std::int64_t> sum(std::optional<std::int64_t> a, std::optional<std::int64_t> b) {
  if (!a || !b) return std::nullopt;
  return *a + *b;
}

std::optional<bool> find_gate(Json const& config, std::string const& model_type) {
  for (auto const* key : {"gated_linear_unit", "swiglu"}) {
    if (auto const configured = flag(config, key)) return configured;
  }
  auto const act = text(config, {"hidden_activation", "hidden_act", "activation_function"});
  if (act == "silu" || act == "swish" || act == "swiglu" || act == "geglu" || act == "fast-swiglu") return true;
  if (model_type.starts_with("gemma")) return true;
  if (act.starts_with("gelu") || act == "relu" || act == "relu2") return false;
  return std::nullopt;
}

std::optional<std::int64_t> feed_forward(Json const& config, std::string const& model_type,
                                         std::optional<std::int64_t> hidden) {
  auto const configured = count(config, {"intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_hidden_size",
                                         "ffn_dim", "inter_size", "d_ff"});
  if (configured) return configured;
  if (auto const both = agreed(config, "encoder_ffn_dim", "decoder_ffn_dim")) return both;
  if (model_type == "mpt") return product(hidden, count(config, {"expansion_ratio"}));
  // The classes of these models use four times the width if the config has no number.
  static constexpr std::array<std::string_view, 8> four_times{
      "gpt2", "bloom", "falcon", "gpt_bigcode", "gpt_bigcode_multi_head", "gptj", "codegen", "openai-gpt"};
  if (std::find(four_times.begin(), four_times.end(), model_type) == four_times.end()) return std::nullopt;
  return product(hidden, 4);
}

constexpr std::array<std::pair<SizeName, std::string_view>, 26> size_names{{
    {SizeName::hidden, "hidden"},
    {SizeName::heads, "heads"},
    {SizeName::kv_heads, "kv_heads"},
    {SizeName::query, "query"},
    {SizeName::key_value, "key_value"},
    {SizeName::kv_values, "kv_values"},
    {SizeName::value, "value"},
    {SizeName::latent_kv, "latent_kv"},
    {SizeName::q_a, "q_a"},
    {SizeName::kv_a, "kv_a"},
    {SizeName::ffn, "ffn"},
    {SizeName::expert_ffn, "expert_ffn"},
    {SizeName::shared_ffn, "shared_ffn"},
    {SizeName::vocabulary, "vocabulary"},
    {SizeName::layers, "layers"},
    {SizeName::further_layers, "further_layers"},
    {SizeName::experts, "experts"},
    {SizeName::gated_query, "gated_query"},
    {SizeName::linear_key, "linear_key"},
    {SizeName::linear_value, "linear_value"},
    {SizeName::linear_heads, "linear_heads"},
    {SizeName::linear_qkvz, "linear_qkvz"},
    {SizeName::linear_ba, "linear_ba"},
    {SizeName::ssm, "ssm"},
    {SizeName::ssm_heads, "ssm_heads"},
    {SizeName::ssm_states, "ssm_states"},
}};

}  // namespace

bool is_quoted_number(Json const& value) {
  if (!value.is_string()) return false;
  auto const& text = value.get_ref<std::string const&>();
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

Json const& language_config(Json const& config) {
  for (auto const* part : {"text_config", "llm_config"}) {
    auto const found = config.find(part);
    if (found != config.end() && found->is_object()) return *found;
  }
  return config;
}

ModelSizes::ModelSizes(Json const& whole) {
  if (!whole.is_object() || whole.empty()) return;
  known_ = true;
  auto const& config = language_config(whole);
  model_type_ = text(config, {"model_type"});
  gated_ = find_gate(config, model_type_);
  // The value of the whole model takes precedence, because parts may carry the default of their class.
  tied_ = flag(whole, "tie_word_embeddings").value_or(flag(config, "tie_word_embeddings").value_or(false)) ||
          flag(config, "share_embedding_table").value_or(false);
  // Without multi-query attention, this model has another fused layer.
  if (model_type_ == "gpt_bigcode" && !flag(config, "multi_query").value_or(true))
    model_type_ = "gpt_bigcode_multi_head";

  auto const hidden = count(config, {"hidden_size", "n_embd", "d_model", "dim"});
  set(SizeName::hidden, hidden);
  set(SizeName::vocabulary, count(config, {"vocab_size"}));
  set(SizeName::layers, count(config, {"num_hidden_layers", "n_layer", "num_layers", "n_layers"}));
  set(SizeName::further_layers, count(config, {"num_nextn_predict_layers", "mtp_num_layers"}));
  set_attention(config, hidden);
  set_feed_forward(config, hidden);
  set_mixers(config, hidden);
}

void ModelSizes::set(SizeName name, std::optional<std::int64_t> value) {
  if (value) sizes_.emplace(name, *value);
}

void ModelSizes::set_attention(Json const& config, std::optional<std::int64_t> hidden) {
  auto heads = count(config, {"num_attention_heads", "n_head", "n_heads", "num_heads"});
  if (!heads) heads = agreed(config, "encoder_attention_heads", "decoder_attention_heads");
  auto kv_heads = count(config, {"num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "num_query_groups",
                                 "multi_query_group_num"});
  if (auto const part = config.find("attn_config"); !kv_heads && part != config.end() && part->is_object())
    kv_heads = count(*part, {"kv_n_heads"});
  // Falcon writes both keys; its older models have one head whatever the count is.
  if (flag(config, "multi_query").value_or(false) && !flag(config, "new_decoder_architecture").value_or(false))
    kv_heads = 1;
  if (model_type_ == "falcon" && !flag(config, "multi_query").value_or(true) &&
      !flag(config, "new_decoder_architecture").value_or(false))
    kv_heads = heads;
  if (!kv_heads || model_type_ == "gpt_bigcode_multi_head") kv_heads = heads;
  auto head = count(config, {"head_dim", "head_size", "kv_channels", "d_kv"});
  if (!head && hidden && heads && *hidden % *heads == 0) head = *hidden / *heads;
  set(SizeName::heads, heads);
  if (auto const latent = count(config, {"kv_lora_rank"})) {
    auto const rotary = count(config, {"qk_rope_head_dim", "qk_pos_emb_head_dim"});
    set(SizeName::q_a, count(config, {"q_lora_rank"}));
    set(SizeName::kv_a, sum(latent, rotary));
    auto const plain = count(config, {"qk_nope_head_dim", "qk_head_dim"});
    auto const value = count(config, {"v_head_dim"});
    set(SizeName::query, product(heads, sum(plain, rotary)));
    set(SizeName::latent_kv, product(heads, sum(plain, value)));
    set(SizeName::value, product(heads, value));
  } else {
    set(SizeName::kv_heads, kv_heads);
    set(SizeName::query, product(heads, head));
    set(SizeName::key_value, product(kv_heads, head));
    auto const value_head = count(config, {"v_head_dim"});
    set(SizeName::kv_values, product(kv_heads, value_head ? value_head : head));
    set(SizeName::value, product(heads, value_head ? value_head : head));
  }
  set(SizeName::gated_query, product(2, (*this)[SizeName::query]));
}

/// Sets the sizes of feed-forward layers and of experts.
void ModelSizes::set_feed_forward(Json const& config, std::optional<std::int64_t> hidden) {
  auto const ffn = feed_forward(config, model_type_, hidden);
  auto const nested_in = [&](char const* part, std::initializer_list<char const*> keys) {
    auto const found = config.find(part);
    return found != config.end() && found->is_object() ? count(*found, keys) : std::nullopt;
  };
  auto const moe = count(config, {"moe_intermediate_size", "moe_ffn_hidden_size", "expert_ffn_hidden_size"});
  auto expert = moe ? moe : count(config, {"intermediate_size", "ffn_hidden_size"});
  if (!expert) expert = nested_in("ffn_config", {"ffn_hidden_size"});
  auto shared = count(config, {"shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
                               "shared_intermediate_size", "share_expert_dim"});
  if (!shared)
    shared = product(expert,
                     count(config, {"n_shared_experts", "num_shared_experts", "moe_num_shared_experts"}).value_or(1));
  set(SizeName::ffn, ffn);
  set(SizeName::expert_ffn, expert);
  set(SizeName::shared_ffn, shared);
  auto experts =
      count(config, {"num_local_experts", "num_experts", "n_routed_experts", "num_moe_experts", "moe_num_experts"});
  // TensorRT-LLM and DBRX have the number in a nested object.
  if (!experts) experts = nested_in("moe", {"num_experts"});
  if (!experts) experts = nested_in("ffn_config", {"moe_num_experts"});
  set(SizeName::experts, experts);
}

/// Sets the sizes of layers that replace attention.
void ModelSizes::set_mixers(Json const& config, std::optional<std::int64_t> hidden) {
  auto const linear_heads = count(config, {"linear_num_value_heads"});
  auto const key = product(count(config, {"linear_num_key_heads"}), count(config, {"linear_key_head_dim"}));
  auto const value = product(linear_heads, count(config, {"linear_value_head_dim"}));
  set(SizeName::linear_key, key);
  set(SizeName::linear_value, value);
  set(SizeName::linear_heads, linear_heads);
  set(SizeName::linear_qkvz, product(2, sum(key, value)));
  set(SizeName::linear_ba, product(2, linear_heads));
  bool const is_mamba = model_type_ == "mamba" || model_type_ == "falcon_mamba";
  auto heads = count(config, {"mamba_n_heads", "mamba_num_heads"});
  if (!heads && model_type_ == "mamba2") heads = count(config, {"num_heads"});
  auto inner = count(config, {"mamba_d_ssm"});
  if (!inner && is_mamba) inner = count(config, {"intermediate_size"});
  if (!inner) inner = product(heads, count(config, {"mamba_d_head", "mamba_head_dim"}));
  if (!inner) inner = product(hidden, count(config, {"mamba_expand", "expand"}));
  set(SizeName::ssm, inner);
  set(SizeName::ssm_heads, heads);
  set(SizeName::ssm_states, product(count(config, {"mamba_n_groups", "n_groups"}),
                                    count(config, {"mamba_d_state", "ssm_state_size", "state_size"})));
}

std::optional<std::int64_t> ModelSizes::operator[](SizeName name) const {
  auto const found = sizes_.find(name);
  if (found == sizes_.end()) return std::nullopt;
  return found->second;
}

std::string_view to_string(SizeName name) noexcept {
  for (auto const& [known, text] : size_names) {
    if (known == name) return text;
  }
  return "unknown";
}

std::optional<SizeName> parse_size_name(std::string_view text) noexcept {
  for (auto const& [name, known] : size_names) {
    if (known == text) return name;
  }
  return std::nullopt;
}

}  // namespace crossrank::checkpoint
