#include <array>
#include <cmath>
#include <exception>
#include <string>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/transforms_optimizer.hpp>

#include "transforms/model/reals.hpp"

namespace crossrank {
namespace {

using transforms::chunk_elements;
using transforms::for_each_chunk;
using transforms::read_reals;
using transforms::write_reals;

using Chunk = std::array<double, chunk_elements>;

std::string state_name(TrainedTensor const& tensor, std::string_view kind) {
  return tensor.name + "." + std::string(kind);
}

std::size_t count_of(Tensor const& tensor) { return static_cast<std::size_t>(tensor.numel()); }

}  // namespace

Optimizer::Optimizer(std::shared_ptr<TrainableModel> model) : model_(std::move(model)) {}
Optimizer::~Optimizer() = default;

void Optimizer::step() {
  try {
    ++steps_;
    for (auto& tensor : model_->trained_tensors()) {
      if (tensor.grad.defined()) update(tensor);
    }
  } catch (std::exception const& e) {
    model_->abort(std::string("the optimizer's step failed: ") + e.what());
    throw;
  }
}

Tensor Optimizer::make_state(TrainedTensor const& tensor, std::string_view kind) {
  if (kind == "step") return Tensor::scalar(0.0);
  return Tensor::zeros(tensor.value.shape(), tensor.value.dtype() == Dtype::f64 ? Dtype::f64 : Dtype::f32);
}

Tensor& Optimizer::state_of(TrainedTensor const& tensor, std::string_view kind) {
  auto& state = state_[state_name(tensor, kind)];
  if (!state.defined()) state = make_state(tensor, kind);
  return state;
}

void Optimizer::load_state(StateDict state, std::int64_t steps) {
  StateDict expected;
  for (auto const& tensor : model_->trained_tensors()) {
    for (auto const kind : kinds()) expected.insert(state_name(tensor, kind), make_state(tensor, kind));
  }
  for (auto const& [name, tensor] : state) {
    auto const* const like = expected.find(name);
    if (like != nullptr && to_string(*like) == to_string(tensor)) continue;
    throw UsageError(
        {.operation = "Optimizer.load_state",
         .message = like == nullptr ? "no parameter has this state" : "the state does not fit its parameter",
         .expected = like == nullptr ? std::string() : to_string(*like),
         .got = to_string(tensor),
         .resource = name,
         .hint = "load the state of the same optimizer and model"});
  }
  state_ = std::move(state);
  steps_ = steps;
}

SGD::SGD(std::shared_ptr<TrainableModel> model, SGDOptions options) : Optimizer(std::move(model)), options_(options) {}

std::vector<std::string_view> SGD::kinds() const {
  if (options_.momentum == 0) return {};
  return {"momentum_buffer"};
}

void SGD::update(TrainedTensor& tensor) {
  auto* const direction = options_.momentum != 0 ? &state_of(tensor, "momentum_buffer") : nullptr;
  Chunk value{};
  Chunk grad{};
  Chunk moved{};
  for_each_chunk(count_of(tensor.value), [&](std::size_t begin, std::size_t count) {
    read_reals(tensor.value, begin, std::span(value).first(count));
    read_reals(tensor.grad, begin, std::span(grad).first(count));
    if (direction != nullptr) read_reals(*direction, begin, std::span(moved).first(count));
    for (std::size_t i = 0; i < count; ++i) {
      auto step = grad[i] + options_.weight_decay * value[i];
      if (direction != nullptr) step = moved[i] = options_.momentum * moved[i] + step;
      value[i] -= options_.lr * step;
    }
    if (direction != nullptr) write_reals(*direction, begin, std::span(moved).first(count));
    write_reals(tensor.value, begin, std::span(value).first(count));
  });
}

AdamW::AdamW(std::shared_ptr<TrainableModel> model, AdamWOptions options)
    : Optimizer(std::move(model)), options_(options) {}

std::vector<std::string_view> AdamW::kinds() const { return {"step", "exp_avg", "exp_avg_sq"}; }

void AdamW::update(TrainedTensor& tensor) {
  auto step = state_of(tensor, "step");
  auto mean = state_of(tensor, "exp_avg");
  auto square = state_of(tensor, "exp_avg_sq");
  auto const n = ++step.as_mutable<double>()[0];
  auto const scale = options_.lr / (1 - std::pow(options_.beta1, n));
  auto const square_scale = 1 / std::sqrt(1 - std::pow(options_.beta2, n));
  Chunk value{};
  Chunk grad{};
  Chunk m{};
  Chunk v{};
  for_each_chunk(count_of(tensor.value), [&](std::size_t begin, std::size_t count) {
    read_reals(tensor.value, begin, std::span(value).first(count));
    read_reals(tensor.grad, begin, std::span(grad).first(count));
    read_reals(mean, begin, std::span(m).first(count));
    read_reals(square, begin, std::span(v).first(count));
    for (std::size_t i = 0; i < count; ++i) {
      m[i] = options_.beta1 * m[i] + (1 - options_.beta1) * grad[i];
      v[i] = options_.beta2 * v[i] + (1 - options_.beta2) * grad[i] * grad[i];
      value[i] *= 1 - options_.lr * options_.weight_decay;
      value[i] -= scale * m[i] / (std::sqrt(v[i]) * square_scale + options_.eps);
    }
    write_reals(mean, begin, std::span(m).first(count));
    write_reals(square, begin, std::span(v).first(count));
    write_reals(tensor.value, begin, std::span(value).first(count));
  });
}

double clip_grad_norm(TrainableModel& model, double max_norm) {
  auto trained = model.trained_tensors();
  double squares = 0;
  Chunk grad{};
  for (auto const& tensor : trained) {
    if (!tensor.grad.defined()) continue;
    for_each_chunk(count_of(tensor.grad), [&](std::size_t begin, std::size_t count) {
      read_reals(tensor.grad, begin, std::span(grad).first(count));
      for (std::size_t i = 0; i < count; ++i) squares += grad[i] * grad[i];
    });
  }
  auto const norm = std::sqrt(model.sum_over_shards(squares));
  if (norm <= max_norm) return norm;
  for (auto& tensor : trained) {
    if (!tensor.grad.defined()) continue;
    for_each_chunk(count_of(tensor.grad), [&](std::size_t begin, std::size_t count) {
      auto const part = std::span(grad).first(count);
      read_reals(tensor.grad, begin, part);
      for (auto& value : part) value *= max_norm / (norm + 1e-6);
      write_reals(tensor.grad, begin, part);
    });
  }
  return norm;
}

}  // namespace crossrank
