#include "bench/checkpoint/shard_shapes.hpp"

#include <algorithm>
#include <stdexcept>

namespace crossrank::bench {
namespace {

constexpr std::int64_t hidden = 4096;
constexpr std::int64_t intermediate = 14336;
constexpr std::int64_t heads = 32;
constexpr std::int64_t kv_heads = 8;
constexpr std::int64_t vocabulary = 32000;
constexpr std::int64_t kv_width = hidden / heads * kv_heads;
constexpr std::int64_t group = 16;  // elements per scale in NVFP4

class Builder {
 public:
  explicit Builder(bool packed) : packed_(packed) {}

  void plain(std::string name, Shape const& shape, int axis) {
    model.tensors.push_back({std::move(name), Dtype::bf16, shape, axis});
  }
  void linear(std::string const& name, std::int64_t out, std::int64_t in, int axis) {
    if (!packed_) return plain(name + ".weight", {out, in}, axis);
    model.tensors.push_back({name + ".weight", Dtype::u8, {out, in / 2}, axis});
    model.tensors.push_back({name + ".weight_scale", Dtype::f8_e4m3, {out, in / group}, axis});
    model.tensors.push_back({name + ".weight_scale_2", Dtype::f32, {}, -1});
    model.tensors.push_back({name + ".input_scale", Dtype::f32, {}, -1});
  }
  void layer(std::int64_t number) {
    auto const at = "model.layers." + std::to_string(number) + ".";
    plain(at + "input_layernorm.weight", {hidden}, -1);
    linear(at + "self_attn.q_proj", hidden, hidden, 0);
    linear(at + "self_attn.k_proj", kv_width, hidden, 0);
    linear(at + "self_attn.v_proj", kv_width, hidden, 0);
    linear(at + "self_attn.o_proj", hidden, hidden, 1);
    plain(at + "post_attention_layernorm.weight", {hidden}, -1);
    linear(at + "mlp.gate_proj", intermediate, hidden, 0);
    linear(at + "mlp.up_proj", intermediate, hidden, 0);
    linear(at + "mlp.down_proj", hidden, intermediate, 1);
  }
  [[nodiscard]] std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (auto const& tensor : model.tensors) sum += dense_bytes(tensor.shape, tensor.dtype);
    return sum;
  }

  Model model{};

 private:
  bool packed_;
};

}  // namespace

Model llama(std::string const& kind, std::uint64_t bytes) {
  if (kind != "bf16" && kind != "nvfp4") throw std::runtime_error("unknown kind of model: " + kind);
  bool const packed = kind == "nvfp4";
  Builder one(packed);
  one.layer(0);
  Builder builder(packed);
  builder.plain("model.embed_tokens.weight", {vocabulary, hidden}, 0);
  builder.plain("lm_head.weight", {vocabulary, hidden}, 0);
  builder.plain("model.norm.weight", {hidden}, -1);
  auto const rest = bytes > builder.bytes() ? bytes - builder.bytes() : 0;
  auto const layers = std::max<std::int64_t>(1, static_cast<std::int64_t>((rest + one.bytes() / 2) / one.bytes()));
  for (std::int64_t i = 0; i < layers; ++i) builder.layer(i);
  builder.model.config = {{"architectures", {"LlamaForCausalLM"}},
                          {"model_type", "llama"},
                          {"hidden_size", hidden},
                          {"intermediate_size", intermediate},
                          {"num_attention_heads", heads},
                          {"num_key_value_heads", kv_heads},
                          {"num_hidden_layers", layers},
                          {"tie_word_embeddings", false},
                          {"torch_dtype", "bfloat16"},
                          {"vocab_size", vocabulary}};
  if (packed) {
    builder.model.quantization = {{"producer", {{"name", "modelopt"}, {"version", "0.47.0"}}},
                                  {"quantization",
                                   {{"quant_algo", "NVFP4"},
                                    {"kv_cache_quant_algo", nullptr},
                                    {"group_size", group},
                                    {"exclude_modules", {"lm_head"}}}}};
  }
  return std::move(builder.model);
}

}  // namespace crossrank::bench
