#include "workspace/checkpoint/discovery/megatron/training_arguments.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace crossrank::checkpoint {
namespace {

// These keys have the same meaning in a config and in the arguments.
constexpr std::array<char const*, 12> same_keys{
    "hidden_size",
    "num_attention_heads",
    "kv_channels",
    "ffn_hidden_size",
    "num_layers",
    "vocab_size",
    "num_experts",
    "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "expert_model_parallel_size",
};

bool is_true(Json const& arguments, char const* key) {
  auto const found = arguments.find(key);
  return found != arguments.end() && found->is_boolean() && found->get<bool>();
}

std::int64_t count(Json const& config, char const* key) {
  auto const found = config.find(key);
  return found != config.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

}  // namespace

Json config_of_arguments(Json const& attributes) {
  Json config = Json::object();
  auto const found = attributes.find("args");
  if (found == attributes.end() || !found->is_object()) return config;
  auto const& arguments = *found;
  for (auto const* key : same_keys) {
    if (count(arguments, key) > 0) config[key] = arguments.at(key);
  }
  // Without this switch the number is only the default of the command line.
  if (is_true(arguments, "group_query_attention")) config["num_query_groups"] = count(arguments, "num_query_groups");
  // The same holds for these keys and their switch.
  if (is_true(arguments, "multi_latent_attention")) {
    for (auto const* key : {"q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"}) {
      if (count(arguments, key) > 0) config[key] = arguments.at(key);
    }
  }
  for (auto const* key : {"swiglu", "gated_linear_unit"}) {
    if (arguments.contains(key) && arguments.at(key).is_boolean()) config[key] = arguments.at(key);
  }
  return config;
}

bool has_padded_vocabulary(Json const& attributes) {
  auto const found = attributes.find("args");
  if (found == attributes.end() || !found->is_object()) return false;
  auto const tokens = count(*found, "vocab_size");
  return tokens > 0 && count(*found, "padded_vocab_size") > tokens;
}

void resolve_second_number(NamedShard& shard, AnnouncedGrid const& grid) {
  if (grid.ep <= 1 || grid.pp > 1) return;
  auto& numbers = shard.numbers;
  if (shard.name.starts_with("mp_rank_") && !numbers.ep) std::swap(numbers.pp, numbers.ep);
}

}  // namespace crossrank::checkpoint
