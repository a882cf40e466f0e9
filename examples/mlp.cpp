// Trains a small network, whose backward pass is written by hand, and saves it. Goes on from the checkpoint if there is
// one, with any number of ranks that divides 24 and either transform.
// Usage: crossrank run -n 2 -- mlp ddp|shard OUT STEPS
#include <crossrank/crossrank.hpp>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t batch = 24;  // samples of all ranks together

std::size_t length(xr::Tensor const& tensor, std::size_t dim) { return static_cast<std::size_t>(tensor.shape()[dim]); }

/// Layers of the form y = tanh(x W^T + b); the last one without tanh. Each layer is a unit.
class Mlp final : public xr::TrainableModel {
 public:
  explicit Mlp(std::vector<std::int64_t> const& widths) {
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      auto const name = "layers." + std::to_string(i);
      units_.push_back({.name = name,
                        .parameters = {parameter(name + ".weight", {widths[i + 1], widths[i]}),
                                       parameter(name + ".bias", {widths[i + 1]})}});
    }
  }

  [[nodiscard]] std::vector<xr::ModelUnit> units() const override { return units_; }
  void observe(xr::TrainingObserver* observer) override { observer_ = observer; }

  [[nodiscard]] std::vector<xr::Tensor> forward(std::span<xr::Tensor const> inputs) override {
    activations_ = {inputs.front()};
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      if (observer_ != nullptr) observer_->before_unit(unit, xr::Pass::forward);
      activations_.push_back(run_layer(unit, activations_.back()));
      if (observer_ != nullptr) observer_->after_unit(unit, xr::Pass::forward);
    }
    return {activations_.back()};
  }

  void backward(std::span<xr::Tensor const> gradients) override {
    auto gradient = gradients.front().clone();
    for (auto unit = units_.size(); unit-- > 0;) {
      if (observer_ != nullptr) observer_->before_unit(unit, xr::Pass::backward);
      gradient = run_layer_backward(unit, gradient);
      if (observer_ == nullptr) continue;
      for (auto const& each : units_[unit].parameters) observer_->gradient_ready(*each);
      observer_->after_unit(unit, xr::Pass::backward);
    }
  }

 private:
  [[nodiscard]] std::shared_ptr<xr::Parameter> parameter(std::string name, xr::Shape const& shape) {
    auto value = xr::Tensor::empty(shape, xr::Dtype::f32);
    for (auto& each : value.as_mutable<float>()) each = static_cast<float>(random_() % 2001) / 2000.F - 0.5F;
    return std::make_shared<xr::Parameter>(xr::Parameter{.name = std::move(name), .value = std::move(value)});
  }

  [[nodiscard]] xr::Tensor run_layer(std::size_t unit, xr::Tensor const& inputs) const {
    auto const& weight = units_[unit].parameters[0]->value;
    auto const x = inputs.as<float>();
    auto const w = weight.as<float>();
    auto const b = units_[unit].parameters[1]->value.as<float>();
    auto const in = length(weight, 1);
    auto const out = length(weight, 0);
    auto outputs = xr::Tensor::empty({inputs.shape()[0], weight.shape()[0]}, xr::Dtype::f32);
    auto const y = outputs.as_mutable<float>();
    for (std::size_t i = 0; i < y.size(); ++i) {
      auto const row = i / out * in;
      auto const column = i % out * in;
      y[i] = b[i % out];
      for (std::size_t k = 0; k < in; ++k) y[i] += x[row + k] * w[column + k];
      if (unit + 1 < units_.size()) y[i] = std::tanh(y[i]);
    }
    return outputs;
  }

  /// Adds to the gradients of the layer. Returns the gradient of its inputs, and overwrites that of its outputs.
  [[nodiscard]] xr::Tensor run_layer_backward(std::size_t unit, xr::Tensor& output_gradient) {
    auto& weight = *units_[unit].parameters[0];
    auto& bias = *units_[unit].parameters[1];
    for (auto* const each : {&weight, &bias}) {
      if (!each->grad.defined()) each->grad = xr::Tensor::zeros(each->value.shape(), each->value.dtype());
    }
    auto const x = activations_[unit].as<float>();
    auto const y = activations_[unit + 1].as<float>();
    auto const w = weight.value.as<float>();
    auto const in = length(weight.value, 1);
    auto const out = length(weight.value, 0);
    auto input_gradient = xr::Tensor::zeros(activations_[unit].shape(), xr::Dtype::f32);
    auto const dx = input_gradient.as_mutable<float>();
    auto const dy = output_gradient.as_mutable<float>();
    auto const dw = weight.grad.as_mutable<float>();
    auto const db = bias.grad.as_mutable<float>();
    for (std::size_t i = 0; i < dy.size(); ++i) {
      auto const row = i / out * in;
      auto const column = i % out * in;
      if (unit + 1 < units_.size()) dy[i] *= 1.F - y[i] * y[i];
      db[i % out] += dy[i];
      for (std::size_t k = 0; k < in; ++k) {
        dw[column + k] += dy[i] * x[row + k];
        dx[row + k] += dy[i] * w[column + k];
      }
    }
    return input_gradient;
  }

  std::mt19937 random_{7};
  std::vector<xr::ModelUnit> units_{};
  xr::TrainingObserver* observer_ = nullptr;
  std::vector<xr::Tensor> activations_{};  // inputs of each unit, and the outputs of the last one
};

/// Runs one step on this rank's part of the batch. Returns its loss.
float train_step(xr::TrainableModel& model, xr::Optimizer& optimizer, xr::Collective const& world, std::int64_t step) {
  auto const mine = batch / static_cast<std::size_t>(world.world_size());
  auto inputs = xr::Tensor::empty({static_cast<std::int64_t>(mine), 2}, xr::Dtype::f32);
  auto const x = inputs.as_mutable<float>();
  for (std::size_t i = 0; i < mine; ++i) {
    auto const sample =
        static_cast<float>(static_cast<std::size_t>(step) * batch + static_cast<std::size_t>(world.rank()) * mine + i);
    x[2 * i] = std::sin(1.1F * sample);
    x[2 * i + 1] = std::cos(0.7F * sample);
  }
  model.zero_grad();
  auto const outputs = model.forward(std::span(&inputs, 1)).front();
  auto gradient = xr::Tensor::empty(outputs.shape(), xr::Dtype::f32);
  float loss = 0;
  for (std::size_t i = 0; i < mine; ++i) {
    auto const error = outputs.as<float>()[i] - x[2 * i] * x[2 * i + 1];  // it learns to multiply
    loss += error * error / static_cast<float>(mine);
    gradient.as_mutable<float>()[i] = 2 * error / static_cast<float>(mine);
  }
  model.backward(std::span(&gradient, 1));
  optimizer.step();
  return loss;
}

}  // namespace

int main(int argc, char** argv) {
  bool const shard = argc == 4 && std::strcmp(argv[1], "shard") == 0;
  if (argc != 4 || (!shard && std::strcmp(argv[1], "ddp") != 0))
    return std::fprintf(stderr, "usage: mlp ddp|shard OUT STEPS\n"), 2;
  try {
    auto const world = xr::connect({.progress = xr::ProgressMode::thread});
    xr::MeshCollective const job(world, {.sharding_world_size = shard ? world.world_size() : 1});
    auto const engine = std::make_shared<Mlp>(std::vector<std::int64_t>{2, 17, 5, 1});
    auto const model = shard ? xr::FullyShardTransform({}, job).apply(engine) : xr::DDPTransform({}, job).apply(engine);
    xr::AdamW optimizer(model, {.lr = 1e-2});
    std::filesystem::path const out = argv[2];
    if (xr::has_checkpoint(job.dp_world(), out))
      (void)xr::load_checkpoint(job.dp_world(), *model, out, {.optimizer = &optimizer});
    if (optimizer.steps() >= std::atoi(argv[3])) {
      if (world.is_master()) std::printf("step %d, no step is left\n", static_cast<int>(optimizer.steps()));
      return 0;
    }
    float loss = 0;
    while (optimizer.steps() < std::atoi(argv[3])) loss = train_step(*model, optimizer, world, optimizer.steps());
    loss = world.all_reduce_value(loss, xr::ReduceOp::avg);
    if (world.is_master()) std::printf("step %d, loss %.4f\n", static_cast<int>(optimizer.steps()), loss);
    xr::save_checkpoint(job.dp_world(), *model, out, {.optimizer = &optimizer, .force = true});
  } catch (xr::Error const& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
