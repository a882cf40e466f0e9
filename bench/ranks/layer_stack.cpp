#include "bench/ranks/layer_stack.hpp"

#include <string>
#include <thread>
#include <utility>

#include "bench/harness/harness.hpp"

namespace crossrank::bench {

double busy_rounds(std::size_t rounds) {
  double a = 1;
  double b = 0.5;
  for (std::size_t i = 0; i < rounds * 1000; ++i) {
    a = a * 0.999999 + b;
    b = b * 0.999998 + 1e-6;
  }
  return a + b;
}

LayerStack::LayerStack() {
  for (std::size_t layer = 0; layer < layers; ++layer) {
    ModelUnit unit{.name = "layer" + std::to_string(layer)};
    for (char const* const name : {"up", "down"}) {
      for (auto const& [kind, shape] : {std::pair{"weight", Shape{width, width}}, std::pair{"bias", Shape{width}}}) {
        auto parameter = std::make_shared<Parameter>();
        parameter->name = unit.name + "." + name + "." + kind;
        parameter->value = Tensor::zeros(shape, Dtype::f32);
        for (auto& value : parameter->value.as_mutable<float>()) value = 0.5F;
        unit.parameters.push_back(std::move(parameter));
      }
    }
    units_.push_back(std::move(unit));
  }
}

std::vector<Tensor> LayerStack::forward(std::span<Tensor const> inputs) {
  for (std::size_t layer = 0; layer < layers; ++layer) {
    if (observer_ != nullptr) observer_->before_unit(layer, Pass::forward);
    for (auto const& parameter : units_[layer].parameters) {
      auto const values = parameter->value.as<float>();
      require(values.front() == 0.5F && values.back() == 0.5F, "wrong values of ", parameter->name);
    }
    if (observer_ != nullptr) observer_->after_unit(layer, Pass::forward);
  }
  return {inputs.begin(), inputs.end()};
}

void LayerStack::compute() const {
  if (work == Work::waits) std::this_thread::sleep_for(wait);
  if (work == Work::uses_the_core) require(busy_rounds(rounds) > 0, "wrong sum");
}

void LayerStack::backward(std::span<Tensor const>) {
  auto const added = gradient;
  for (auto layer = layers; layer-- > 0;) {
    if (observer_ != nullptr) observer_->before_unit(layer, Pass::backward);
    compute();
    auto const& parameters = units_[layer].parameters;
    for (auto at = parameters.rbegin(); at != parameters.rend(); ++at) {
      auto& parameter = **at;
      if (!parameter.grad.defined()) parameter.grad = Tensor::zeros(parameter.value.shape(), Dtype::f32);
      for (auto& value : parameter.grad.as_mutable<float>()) value += added;
      if (observer_ != nullptr) observer_->gradient_ready(parameter);
    }
    if (observer_ != nullptr) observer_->after_unit(layer, Pass::backward);
  }
}

}  // namespace crossrank::bench
