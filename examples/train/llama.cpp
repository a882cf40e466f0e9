#include "llama.hpp"

#include <cmath>
#include <cstdint>
#include <utility>

namespace train {
namespace {

using xr::Pass;

Values values(std::shared_ptr<xr::Parameter> const& parameter) { return parameter->value.as<float>(); }

/// Returns the gradient, which is made at its first use.
Gradient gradient(std::shared_ptr<xr::Parameter> const& parameter) {
  if (!parameter->grad.defined()) parameter->grad = xr::Tensor::zeros(parameter->value.shape(), xr::Dtype::f32);
  return parameter->grad.as_mutable<float>();
}

/// Fills a tensor with reproducible numbers around 0; a deviation of 0 gives ones.
void fill(xr::Tensor& tensor, std::string const& name, float deviation) {
  std::uint64_t state = 88172645463325252U;
  for (auto const c : name) state = (state ^ static_cast<unsigned char>(c)) * 1099511628211U;
  for (auto& value : tensor.as_mutable<float>()) {
    float sum = 0;  // of twelve uniform numbers: nearly a normal distribution
    for (int i = 0; i < 12; ++i) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      sum += static_cast<float>(state >> 40) / static_cast<float>(1 << 24);
    }
    value = deviation == 0 ? 1 : deviation * (sum - 6);
  }
}

void add_to(Floats& to, Floats const& from) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

std::int64_t signed_size(std::size_t size) { return static_cast<std::int64_t>(size); }

}  // namespace

xr::Json LlamaConfig::json() const {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", vocabulary},
          {"hidden_size", hidden},
          {"intermediate_size", feed_forward},
          {"num_hidden_layers", layers},
          {"num_attention_heads", heads},
          {"num_key_value_heads", heads},
          {"max_position_embeddings", context},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", false},
          {"torch_dtype", "float32"}};
}

Llama::Llama(LlamaConfig const& config) : config_(config) {
  auto const vocabulary = signed_size(config.vocabulary);
  auto const hidden = signed_size(config.hidden);
  embedding_ = add_parameter("embedding", "model.embed_tokens", {vocabulary, hidden}, 0.5F);
  for (std::size_t i = 0; i < config.layers; ++i) add_layer(i);
  final_norm_ = add_parameter("head", "model.norm", {hidden}, 0);
  head_ = add_parameter("head", "lm_head", {vocabulary, hidden}, 1 / std::sqrt(static_cast<float>(hidden)));
}

/// Adds a parameter to the unit of this name, which is the last one or a new one.
Llama::ParameterPtr Llama::add_parameter(std::string const& unit, std::string const& name, xr::Shape const& shape,
                                         float deviation) {
  auto parameter = std::make_shared<xr::Parameter>();
  parameter->name = name + ".weight";
  parameter->value = xr::Tensor::empty(shape, xr::Dtype::f32);
  fill(parameter->value, parameter->name, deviation);
  if (units_.empty() || units_.back().name != unit) units_.push_back({.name = unit});
  units_.back().parameters.push_back(parameter);
  return parameter;
}

void Llama::add_layer(std::size_t number) {
  auto const unit = "layer" + std::to_string(number);
  auto const prefix = "model.layers." + std::to_string(number) + ".";
  auto const h = signed_size(config_.hidden);
  auto const f = signed_size(config_.feed_forward);
  auto const deviation = 1 / std::sqrt(static_cast<float>(h));
  // At first, a layer adds only a little to its input.
  auto const small = deviation / std::sqrt(static_cast<float>(2 * config_.layers));
  Layer layer;
  layer.input_norm = add_parameter(unit, prefix + "input_layernorm", {h}, 0);
  layer.q = add_parameter(unit, prefix + "self_attn.q_proj", {h, h}, deviation);
  layer.k = add_parameter(unit, prefix + "self_attn.k_proj", {h, h}, deviation);
  layer.v = add_parameter(unit, prefix + "self_attn.v_proj", {h, h}, deviation);
  layer.o = add_parameter(unit, prefix + "self_attn.o_proj", {h, h}, small);
  layer.post_norm = add_parameter(unit, prefix + "post_attention_layernorm", {h}, 0);
  layer.gate = add_parameter(unit, prefix + "mlp.gate_proj", {f, h}, deviation);
  layer.up = add_parameter(unit, prefix + "mlp.up_proj", {f, h}, deviation);
  layer.down = add_parameter(unit, prefix + "mlp.down_proj", {h, f}, small);
  layers_.push_back(std::move(layer));
}

std::vector<xr::Tensor> Llama::forward(std::span<xr::Tensor const> inputs) {
  auto const tokens = inputs[0].as<std::int32_t>();
  tokens_.assign(tokens.begin(), tokens.end());
  shape_ = {.sequences = static_cast<std::size_t>(inputs[0].shape()[0]),
            .length = static_cast<std::size_t>(inputs[0].shape()[1]),
            .heads = config_.heads,
            .head = config_.hidden / config_.heads};
  auto const run_unit = [&](std::size_t unit, auto const& body) {
    if (observer_ != nullptr) observer_->before_unit(unit, Pass::forward);
    body();
    if (observer_ != nullptr) observer_->after_unit(unit, Pass::forward);
  };
  Floats x;
  run_unit(0, [&] { x = embed(); });
  saved_.assign(layers_.size(), {});
  for (std::size_t i = 0; i < layers_.size(); ++i)
    run_unit(1 + i, [&] { x = layer_forward(layers_[i], std::move(x), saved_[i]); });
  auto logits =
      xr::Tensor::empty({inputs[0].shape()[0], inputs[0].shape()[1], signed_size(config_.vocabulary)}, xr::Dtype::f32);
  run_unit(1 + layers_.size(), [&] {
    last_ = std::move(x);
    last_normed_ = rms_norm(last_, values(final_norm_));
    auto const y = linear(last_normed_, values(head_), config_.hidden);
    std::copy(y.begin(), y.end(), logits.as_mutable<float>().begin());
  });
  return {logits};
}

Floats Llama::embed() const {
  auto const weight = values(embedding_);
  Floats x;
  for (auto const token : tokens_) {
    auto const row = weight.subspan(static_cast<std::size_t>(token) * config_.hidden, config_.hidden);
    x.insert(x.end(), row.begin(), row.end());
  }
  return x;
}

Floats Llama::layer_forward(Layer const& layer, Floats x, Saved& saved) const {
  auto const hidden = config_.hidden;
  saved.normed = rms_norm(x, values(layer.input_norm));
  saved.q = linear(saved.normed, values(layer.q), hidden);
  saved.k = linear(saved.normed, values(layer.k), hidden);
  saved.v = linear(saved.normed, values(layer.v), hidden);
  rotate(saved.q, shape_);
  rotate(saved.k, shape_);
  saved.attention = attention(saved.q, saved.k, saved.v, shape_);
  saved.middle = linear(saved.attention.output, values(layer.o), hidden);
  add_to(saved.middle, x);
  saved.x = std::move(x);
  saved.middle_normed = rms_norm(saved.middle, values(layer.post_norm));
  saved.gate = linear(saved.middle_normed, values(layer.gate), hidden);
  saved.up = linear(saved.middle_normed, values(layer.up), hidden);
  saved.product = gated(saved.gate, saved.up);
  auto y = linear(saved.product, values(layer.down), config_.feed_forward);
  add_to(y, saved.middle);
  return y;
}

void Llama::backward(std::span<xr::Tensor const> gradients) {
  auto const run_unit = [&](std::size_t unit, auto const& body) {
    if (observer_ != nullptr) observer_->before_unit(unit, Pass::backward);
    body();
    if (observer_ != nullptr) observer_->after_unit(unit, Pass::backward);
  };
  Floats dx;
  run_unit(1 + layers_.size(), [&] {
    auto const dnormed = linear_back(gradients[0].as<float>(), last_normed_, head_);
    dx.assign(last_.size(), 0);
    norm_back(dnormed, last_, final_norm_, dx);
  });
  for (auto i = layers_.size(); i-- > 0;)
    run_unit(1 + i, [&] { dx = layer_backward(layers_[i], saved_[i], std::move(dx)); });
  run_unit(0, [&] {
    auto const to = gradient(embedding_);
    for (std::size_t row = 0; row < tokens_.size(); ++row) {
      auto const at = static_cast<std::size_t>(tokens_[row]) * config_.hidden;
      for (std::size_t i = 0; i < config_.hidden; ++i) to[at + i] += dx[row * config_.hidden + i];
    }
    ready(embedding_);
  });
}

Floats Llama::layer_backward(Layer const& layer, Saved const& saved, Floats dy) {
  // The second half: y = middle + down(gated(gate, up)).
  auto const dproduct = linear_back(dy, saved.product, layer.down);
  Floats dgate(saved.gate.size());
  Floats dup(saved.up.size());
  gated_backward(dproduct, saved.gate, saved.up, dgate, dup);
  auto dnormed = linear_back(dup, saved.middle_normed, layer.up);
  add_to(dnormed, linear_back(dgate, saved.middle_normed, layer.gate));
  auto dmiddle = std::move(dy);
  norm_back(dnormed, saved.middle, layer.post_norm, dmiddle);
  // The first half: middle = x + o(attention(q, k, v)).
  auto const dattention = linear_back(dmiddle, saved.attention.output, layer.o);
  Floats dq(saved.q.size());
  Floats dk(saved.k.size());
  Floats dv(saved.v.size());
  attention_backward(dattention, saved.attention, saved.q, saved.k, saved.v, shape_, dq, dk, dv);
  rotate_backward(dq, shape_);
  rotate_backward(dk, shape_);
  dnormed = linear_back(dv, saved.normed, layer.v);
  add_to(dnormed, linear_back(dk, saved.normed, layer.k));
  add_to(dnormed, linear_back(dq, saved.normed, layer.q));
  auto dx = std::move(dmiddle);
  norm_back(dnormed, saved.x, layer.input_norm, dx);
  return dx;
}

Floats Llama::linear_back(Values dy, Values x, ParameterPtr const& weight) {
  auto const in = static_cast<std::size_t>(weight->value.shape()[1]);
  Floats dx(x.size());
  linear_backward(dy, x, values(weight), in, dx, gradient(weight));
  ready(weight);
  return dx;
}

void Llama::norm_back(Values dy, Values x, ParameterPtr const& weight, Floats& dx) {
  rms_norm_backward(dy, x, values(weight), dx, gradient(weight));
  ready(weight);
}

void Llama::ready(ParameterPtr const& parameter) {
  if (observer_ != nullptr) observer_->gradient_ready(*parameter);
}

}  // namespace train
