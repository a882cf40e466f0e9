#include "make_model.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

#include <crossrank/crossrank.hpp>
#include <crossrank/safetensors.hpp>

namespace tp_export {
namespace {

namespace fs = std::filesystem;

struct Dimensions {
  std::int64_t layers, hidden, intermediate, heads, kv_heads, vocabulary;
};

constexpr Dimensions dimensions_of(ModelSize size) {
  return size == ModelSize::small ? Dimensions{2, 64, 172, 8, 4, 320} : Dimensions{5, 1024, 2816, 16, 8, 8192};
}

/// Pseudo-random bits that depend only on the name and the position: splitmix64, seeded by an FNV-1a hash.
class Bits {
 public:
  explicit Bits(std::string_view name) {
    for (char const c : name) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  }
  std::uint64_t next() noexcept {
    auto mixed = state_ += 0x9e3779b97f4a7c15U;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
    return mixed ^ (mixed >> 31);
  }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325U;
};

/// Fills a tensor with bfloat16 numbers of either sign between 1/128 and 1/32.
xr::Tensor make_tensor(std::string_view name, xr::Shape const& shape) {
  auto tensor = xr::Tensor::empty(shape, xr::Dtype::bf16);
  auto const bytes = tensor.mutable_bytes();
  Bits bits(name);
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    auto const four = (bits.next() & 0x80ff'80ff'80ff'80ffU) | 0x3c00'3c00'3c00'3c00U;
    std::memcpy(bytes.data() + at, &four, std::min(sizeof(four), bytes.size() - at));
  }
  return tensor;
}

xr::StateDict make_weights(Dimensions const& d) {
  xr::StateDict weights;
  auto const add = [&](std::string const& name, xr::Shape const& shape) {
    weights.insert_or_assign(name, make_tensor(name, shape));
  };
  auto const kv = d.hidden / d.heads * d.kv_heads;
  add("model.embed_tokens.weight", {d.vocabulary, d.hidden});
  for (std::int64_t i = 0; i < d.layers; ++i) {
    auto const layer = "model.layers." + std::to_string(i) + ".";
    add(layer + "input_layernorm.weight", {d.hidden});
    add(layer + "self_attn.q_proj.weight", {d.hidden, d.hidden});
    add(layer + "self_attn.k_proj.weight", {kv, d.hidden});
    add(layer + "self_attn.v_proj.weight", {kv, d.hidden});
    add(layer + "self_attn.o_proj.weight", {d.hidden, d.hidden});
    add(layer + "post_attention_layernorm.weight", {d.hidden});
    add(layer + "mlp.gate_proj.weight", {d.intermediate, d.hidden});
    add(layer + "mlp.up_proj.weight", {d.intermediate, d.hidden});
    add(layer + "mlp.down_proj.weight", {d.hidden, d.intermediate});
  }
  add("model.norm.weight", {d.hidden});
  return weights;
}

xr::Json make_config(Dimensions const& d) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", d.hidden},
          {"intermediate_size", d.intermediate},
          {"num_hidden_layers", d.layers},
          {"num_attention_heads", d.heads},
          {"num_key_value_heads", d.kv_heads},
          {"vocab_size", d.vocabulary},
          {"max_position_embeddings", 512},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", true},
          {"torch_dtype", "bfloat16"}};
}

}  // namespace

void make_model(fs::path const& directory, ModelSize size) {
  auto const dimensions = dimensions_of(size);
  fs::create_directories(directory);
  xr::save_safetensors(directory / "model.safetensors", make_weights(dimensions));
  std::ofstream out(directory / "config.json");
  out.exceptions(std::ios::badbit | std::ios::failbit);
  out << make_config(dimensions).dump(2) << '\n' << std::flush;
}

}  // namespace tp_export
