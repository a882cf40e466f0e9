#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace trtllm_export {
namespace {

/// How a tensor is split among tensor-parallel ranks.
enum class ShardAxis : std::uint8_t { none, rows, columns };

/// A weight of the whole model. Each number depends only on name, row and column, so ranks need not communicate.
class Weight {
 public:
  Weight(std::string const& name, int rows, int columns) : rows_(rows), columns_(columns) {
    for (char const c : name) seed_ = (seed_ ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  }
  /// Returns the part of one rank.
  [[nodiscard]] xr::Tensor part(ShardAxis axis, Place const& place) const {
    int const rows = axis == ShardAxis::rows ? rows_ / place.tp_size : rows_;
    int const columns = axis == ShardAxis::columns ? columns_ / place.tp_size : columns_;
    int const first_row = axis == ShardAxis::rows ? rows * place.tp : 0;
    int const first_column = axis == ShardAxis::columns ? columns * place.tp : 0;
    std::vector<float> values;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < columns; ++c) values.push_back(at(first_row + r, first_column + c));
    }
    return xr::Tensor::of<float>(values, {rows, columns});
  }

 private:
  /// Returns a number between -1/4 and 1/4.
  [[nodiscard]] float at(int row, int column) const {
    auto bits = seed_ + static_cast<std::uint64_t>(row) * 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(column);
    bits = (bits ^ (bits >> 31U)) * 0xbf58476d1ce4e5b9U;
    return static_cast<float>(bits >> 40U) * 0x1p-25F - 0.25F;
  }

  int rows_;
  int columns_;
  std::uint64_t seed_ = 0xcbf29ce484222325U;
};

xr::Tensor norm(std::string const& name, Sizes const& sizes) {
  return Weight(name, 1, sizes.hidden).part(ShardAxis::none, {}).reshape({sizes.hidden});
}

/// Adds a quantized linear layer: its weight, and the scales that calibration found for this part.
void add_linear(xr::RankState& layer, std::string const& name, xr::Tensor weight, float activation) {
  float largest = 0;
  for (float const value : weight.as<float>()) largest = std::max(largest, std::abs(value));
  layer.weights.insert_or_assign(name + ".weight", std::move(weight));
  layer.weights.insert_or_assign(name + ".weights_scaling_factor", xr::Tensor::scalar(largest / 448));
  layer.weights.insert_or_assign(name + ".activation_scaling_factor", xr::Tensor::scalar(activation / 448));
  layer.config["linears"][name] = {{"quantization", "FP8"}};
}

}  // namespace

xr::RankState make_layer(Sizes const& sizes, int number, Place const& place) {
  auto const prefix = std::to_string(number) + ".";
  int const kv = sizes.kv_heads * sizes.head();
  // Each rank was calibrated with other tokens.
  auto const activation = 1.0F + 0.25F * static_cast<float>((number + place.tp) % 3);
  xr::RankState layer;
  layer.config = {{"__name__", "DecoderLayerConfig"}, {"number", number}, {"rotary_dim", -INFINITY}};
  auto const add = [&](std::string const& name, int rows, int columns, ShardAxis axis) {
    add_linear(layer, name, Weight(prefix + name, rows, columns).part(axis, place), activation);
  };
  add("attention.q", sizes.hidden, sizes.hidden, ShardAxis::rows);
  add("attention.k", kv, sizes.hidden, ShardAxis::rows);
  add("attention.v", kv, sizes.hidden, ShardAxis::rows);
  add("attention.dense", sizes.hidden, sizes.hidden, ShardAxis::columns);
  add("mlp.fc", sizes.ffn, sizes.hidden, ShardAxis::rows);
  add("mlp.gate", sizes.ffn, sizes.hidden, ShardAxis::rows);
  add("mlp.proj", sizes.hidden, sizes.ffn, ShardAxis::columns);
  auto const cache = xr::Tensor::scalar(1.0F + 0.5F * static_cast<float>(place.tp));
  layer.weights.insert_or_assign("attention.kv_cache_scaling_factor", cache);
  for (auto const* const name : {"input_layernorm.weight", "post_layernorm.weight"})
    layer.weights.insert_or_assign(name, norm(prefix + name, sizes));
  return layer;
}

xr::RankState make_ends(Sizes const& sizes, Place const& place) {
  xr::RankState ends;
  ends.config = {{"__name__", "ModelConfig"}, {"stage", place.pp}};
  auto const add = [&](std::string const& name) {
    Weight const whole(name, sizes.vocabulary, sizes.hidden);
    ends.weights.insert_or_assign(name, whole.part(ShardAxis::rows, place));
  };
  if (place.pp == 0) add("vocab_embedding.weight");
  if (place.pp == place.pp_size - 1) {
    add("lm_head.weight");
    ends.weights.insert_or_assign("ln_f.weight", norm("ln_f.weight", sizes));
  }
  return ends;
}

StageLayers layers_of(Sizes const& sizes, int stage, int stages) {
  int const even = sizes.layers / stages;
  int const more = sizes.layers % stages;
  int const begin = stage * even + std::min(stage, more);
  return {begin, begin + even + (stage < more ? 1 : 0)};
}

}  // namespace trtllm_export
