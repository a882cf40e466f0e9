#include "tests/transforms/tiny_mlp.hpp"

#include <cmath>
#include <numeric>
#include <utility>

#include "lib/core/as_size.hpp"
#include "transforms/model/reals.hpp"

namespace crossrank::test {
namespace {

std::shared_ptr<Parameter> make(std::string name, Shape const& shape, Dtype dtype, double& seed) {
  auto parameter = std::make_shared<Parameter>();
  parameter->name = std::move(name);
  parameter->value = Tensor::empty(shape, dtype);
  std::vector<double> values(as_size(parameter->value.numel()));
  for (auto& value : values) value = 0.5 * std::sin(seed += 1.7);
  transforms::write_reals(parameter->value, 0, values);
  return parameter;
}

}  // namespace

std::vector<double> reals_of(Tensor const& tensor) {
  std::vector<double> values(as_size(tensor.numel()));
  transforms::read_reals(tensor.to(Device::cpu()), 0, values);
  return values;
}

TinyMlp::TinyMlp(TinyOptions options) : options_(std::move(options)) {
  auto seed = options_.seed;
  auto const& widths = options_.widths;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    auto const name = "layer" + std::to_string(i);
    bool const tie = options_.tied && i == 2;
    weights_.push_back(tie ? weights_[1] : make(name + ".weight", {widths[i + 1], widths[i]}, options_.dtype, seed));
    biases_.push_back(make(name + ".bias", {widths[i + 1]}, options_.bias_dtype, seed));
    units_.push_back({name, {weights_[i], biases_[i]}});
    runs_.push_back(i);
    if (static_cast<int>(i) == options_.repeated_layer) runs_.push_back(i);
  }
  if (options_.frozen) biases_.front()->requires_grad = false;
  if (options_.frozen_layer >= 0) {
    for (auto const& parameter : units_[as_size(options_.frozen_layer)].parameters) parameter->requires_grad = false;
  }
  scale_ = make("scale", {}, options_.dtype, seed);
  units_.back().parameters.push_back(scale_);
  if (options_.buffer) buffers_.push_back(make("mean", {4}, Dtype::f32, seed));
  if (options_.unused)
    units_.back().parameters.push_back(make("unused", {options_.unused_rows, 2}, options_.dtype, seed));
  for (auto const& parameter : parameters()) parameter->value = parameter->value.to(options_.device);
}

void TinyMlp::event(std::size_t unit, Pass pass, bool before) {
  if (before && on_event) on_event((pass == Pass::forward ? "forward " : "backward ") + std::to_string(unit));
  if (observer_ == nullptr) return;
  if (before) return observer_->before_unit(unit, pass);
  observer_->after_unit(unit, pass);
}

/// Rounds to the dtype that the weights have now, which a transform may change.
TinyMlp::Reals TinyMlp::rounded(Reals values) const {
  auto const dtype = weights_[0]->value.dtype();
  if (!options_.rounds || dtype == Dtype::f64) return values;
  auto tensor = Tensor::empty({static_cast<std::int64_t>(values.size())}, dtype);
  transforms::write_reals(tensor, 0, values);
  return reals_of(tensor);
}

/// Returns the output of a run of a layer before its tanh.
TinyMlp::Reals TinyMlp::layer_forward(std::size_t run) const {
  auto const layer = runs_[run];
  auto const w = reals_of(weights_[layer]->value);
  auto const b = reals_of(biases_[layer]->value);
  auto const in = as_size(options_.widths[layer]);
  auto const out = as_size(options_.widths[layer + 1]);
  auto const& x = inputs_[run];
  Reals y(as_size(rows_) * out);
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = skip_last_bias && layer + 1 == weights_.size() ? 0 : b[i % out];
    for (std::size_t k = 0; k < in; ++k) y[i] += x[i / out * in + k] * w[i % out * in + k];
  }
  return rounded(std::move(y));
}

std::vector<Tensor> TinyMlp::forward(std::span<Tensor const> inputs) {
  rows_ = inputs[0].shape()[0];
  inputs_.clear();
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    auto const layer = runs_[run];
    if (is_skipped(layer)) {
      inputs_.push_back(Reals(inputs_.back()));
      continue;
    }
    event(layer, Pass::forward, true);
    if (layer == 0) inputs_.push_back(rounded(reals_of(inputs[0])));
    auto y = layer_forward(run);
    bool const is_last = run + 1 == runs_.size();
    if (!is_last) {
      for (auto& value : y) value = std::tanh(value);
    }
    inputs_.push_back(rounded(std::move(y)));
    if (is_last) {
      y = inputs_.back();
      for (auto& value : y) value *= reals_of(scale_->value)[0];
      y = rounded(std::move(y));
      event(layer, Pass::forward, false);
      auto output = Tensor::empty({rows_, options_.widths.back()}, Dtype::f64);
      transforms::write_reals(output, 0, y);
      return {output};
    }
    event(layer, Pass::forward, false);
  }
  return {};
}

void TinyMlp::recompute(std::size_t run) {
  event(runs_[run], Pass::forward, true);
  static_cast<void>(layer_forward(run));
  event(runs_[run], Pass::forward, false);
}

void TinyMlp::add_gradient(Parameter& parameter, Reals const& gradient) {
  if (!parameter.requires_grad) return;
  auto const& value = parameter.value;
  if (!parameter.grad.defined()) parameter.grad = Tensor::zeros(value.shape(), value.dtype(), value.device());
  auto sum = reals_of(parameter.grad);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
  auto host = Tensor::empty(value.shape(), value.dtype());
  transforms::write_reals(host, 0, sum);
  parameter.grad.copy_from(host);
}

void TinyMlp::layer_backward(std::size_t run, Reals& gradient) {
  auto const layer = runs_[run];
  auto const in = as_size(options_.widths[layer]);
  auto const out = as_size(options_.widths[layer + 1]);
  auto const& x = inputs_[run];
  auto const w = reals_of(weights_[layer]->value);
  bool const is_last = layer + 1 == weights_.size();
  Reals dw(in * out);
  Reals db(out);
  Reals dx(x.size());
  if (!is_last) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      auto const y = inputs_[run + 1][i];
      gradient[i] *= 1 - y * y;
    }
    gradient = rounded(std::move(gradient));
  }
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    auto const g = gradient[i];
    db[i % out] += g;
    for (std::size_t k = 0; k < in; ++k) {
      dw[i % out * in + k] += g * x[i / out * in + k];
      dx[i / out * in + k] += g * w[i % out * in + k];
    }
  }
  bool const runs_again = run > 0 && runs_[run - 1] == layer;
  auto const report = [&](Parameter& parameter, Reals const& values) {
    add_gradient(parameter, rounded(values));
    bool const complete =
        !(options_.tied && layer == 2 && &parameter == weights_[2].get()) && (!runs_again || options_.ready_each_run);
    if (complete && parameter.requires_grad && observer_ != nullptr) observer_->gradient_ready(parameter);
  };
  if (!(skip_last_bias && is_last)) report(*biases_[layer], db);
  report(*weights_[layer], dw);
  gradient = rounded(std::move(dx));
}

void TinyMlp::scale_backward(Reals& gradient) {
  auto const scale = reals_of(scale_->value)[0];
  Reals products = gradient;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    products[i] *= inputs_.back()[i];
    gradient[i] *= scale;
  }
  products = rounded(std::move(products));
  gradient = rounded(std::move(gradient));
  add_gradient(*scale_, rounded({std::accumulate(products.begin(), products.end(), 0.0)}));
  if (observer_ != nullptr) observer_->gradient_ready(*scale_);
}

void TinyMlp::backward(std::span<Tensor const> gradients) {
  auto gradient = reals_of(gradients[0]);
  for (auto run = runs_.size(); run-- > 0;) {
    auto const layer = runs_[run];
    if (is_skipped(layer)) continue;
    if (options_.recomputes) recompute(run);
    event(layer, Pass::backward, true);
    if (options_.recomputes) recompute(run);
    if (layer + 1 == weights_.size()) {
      gradient = rounded(std::move(gradient));
      scale_backward(gradient);
    }
    layer_backward(run, gradient);
    event(layer, Pass::backward, false);
  }
}

double run_pass(TrainableModel& model, int step, std::int64_t begin, std::int64_t end) {
  std::vector<double> x;
  for (auto row = begin; row < end; ++row) {
    for (int i = 0; i < 3; ++i) x.push_back(std::cos(static_cast<double>(row * 3 + i) + 0.3 * step));
  }
  Tensor const input = Tensor::of(x, {end - begin, 3});
  auto const y = reals_of(model.forward(std::span(&input, 1)).front());
  std::vector<double> gradient(y.size());
  double loss = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    auto const target = std::sin(static_cast<double>(begin * 2 + static_cast<std::int64_t>(i)));
    loss += (y[i] - target) * (y[i] - target) / static_cast<double>(y.size());
    gradient[i] = 2 * (y[i] - target) / static_cast<double>(y.size());
  }
  Tensor const upstream = Tensor::of(gradient, {end - begin, 2});
  model.backward(std::span(&upstream, 1));
  return loss;
}

std::vector<double> train(TrainableModel& model, Optimizer& optimizer, int steps, int rank, int ranks) {
  std::vector<double> losses;
  auto const share = batch_rows / ranks;
  for (int step = 0; step < steps; ++step) {
    model.zero_grad();
    losses.push_back(run_pass(model, step, rank * share, (rank + 1) * share));
    optimizer.step();
  }
  return losses;
}

}  // namespace crossrank::test
