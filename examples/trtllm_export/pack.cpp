#include "pack.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "fp8_codec.hpp"

namespace trtllm_export {
namespace {

/// Returns `weight` in units of `scale`, as E4M3 numbers.
xr::Tensor quantize(xr::Tensor const& weight, float scale) {
  auto out = xr::Tensor::empty(weight.shape(), xr::Dtype::f8_e4m3);
  std::ranges::transform(weight.as<float>(), out.mutable_bytes().begin(), [&](float value) {
    return std::byte{fp8::encode_e4m3(static_cast<double>(value) / static_cast<double>(scale))};
  });
  return out;
}

/// Joins queries, keys and values into one layer with the largest of their scales.
void fuse_qkv(xr::StateDict& weights) {
  static constexpr std::array<char const*, 3> parts{"attention.q", "attention.k", "attention.v"};
  std::vector<xr::Tensor> rows;
  for (auto const* const part : parts) rows.push_back(weights.at(std::string(part) + ".weight"));
  weights.insert_or_assign("attention.qkv.weight", xr::concat(rows, {.dim = 0}));
  for (std::string const scale : {".weights_scaling_factor", ".activation_scaling_factor"}) {
    float value = 0;
    for (auto const* const part : parts) value = std::max(value, weights.at(part + scale).item<float>());
    weights.insert_or_assign("attention.qkv" + scale, xr::Tensor::scalar(value));
  }
  for (std::string const part : parts) {
    for (auto const* const suffix : {".weight", ".weights_scaling_factor", ".activation_scaling_factor"})
      weights.erase(part + suffix);
  }
}

}  // namespace

xr::StateDict pack(Model const& model) {
  xr::StateDict out;
  out.insert_or_assign("transformer.vocab_embedding.weight", model.ends.weights.at("vocab_embedding.weight"));
  out.insert_or_assign("transformer.ln_f.weight", model.ends.weights.at("ln_f.weight"));
  out.insert_or_assign("lm_head.weight", model.ends.weights.at("lm_head.weight"));
  for (std::size_t number = 0; number < model.layers.size(); ++number) {
    auto weights = model.layers[number].weights;
    fuse_qkv(weights);
    auto const prefix = "transformer.layers." + std::to_string(number) + ".";
    for (auto const& [name, tensor] : weights) {
      auto const end = name.rfind(".weight");
      auto const* const scale = weights.find(name.substr(0, end) + ".weights_scaling_factor");
      if (scale != nullptr && name.ends_with(".weight")) {
        out.insert_or_assign(prefix + name, quantize(tensor, scale->item<float>()));
      } else {
        // Engines read a scale as a vector of one number.
        out.insert_or_assign(prefix + name, tensor.shape().empty() ? tensor.reshape({1}) : tensor);
      }
    }
  }
  return out;
}

xr::Json describe(Sizes const& sizes, int ranks) {
  return {{"producer", {{"name", "crossrank"}, {"version", CROSSRANK_VERSION}}},
          {"architecture", "LlamaForCausalLM"},
          {"dtype", "float32"},
          {"logits_dtype", "float32"},
          {"num_hidden_layers", sizes.layers},
          {"num_attention_heads", sizes.heads},
          {"num_key_value_heads", sizes.kv_heads},
          {"head_size", sizes.head()},
          {"hidden_size", sizes.hidden},
          {"intermediate_size", sizes.ffn},
          {"vocab_size", sizes.vocabulary},
          {"norm_epsilon", 1e-5},
          {"position_embedding_type", "rope_gpt_neox"},
          {"max_position_embeddings", 512},
          {"hidden_act", "silu"},
          {"share_embedding_table", false},
          {"use_parallel_embedding", true},
          {"embedding_sharding_dim", 0},
          {"mapping", {{"world_size", ranks}, {"tp_size", ranks}, {"pp_size", 1}}},
          {"quantization", {{"quant_algo", "FP8"}, {"kv_cache_quant_algo", "FP8"}, {"exclude_modules", {"lm_head"}}}}};
}

}  // namespace trtllm_export
