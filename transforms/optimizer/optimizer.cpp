#include <array>
#include <cmath>
#include <exception>
#include <string>
#include <utility>

#include <crossrank/transforms_optimizer.hpp>

#include "transforms/model/reals.hpp"

namespace crossrank {
namespace {

using transforms::chunk_elements;
using transforms::for_each_chunk;
using transforms::read_reals;
using transforms::write_reals;

using Chunk = std::array<double, chunk_elements>;

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

Tensor& Optimizer::state_of(TrainedTensor const& tensor, char const* kind) {
  auto& state = state_[tensor.name + "." + kind];
  if (!state.defined())
    state = Tensor::zeros(tensor.value.shape(), tensor.value.dtype() == Dtype::f64 ? Dtype::f64 : Dtype::f32);
  return state;
}

SGD::SGD(std::shared_ptr<TrainableModel> model, SGDOptions options) : Optimizer(std::move(model)), options_(options) {}

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

void AdamW::update(TrainedTensor& tensor) {
  static_cast<void>(state_of(tensor, "exp_avg"));
  static_cast<void>(state_of(tensor, "exp_avg_sq"));
  auto& mean = state_of(tensor, "exp_avg");
  auto& square = state_of(tensor, "exp_avg_sq");
  auto const n = static_cast<double>(++updates_[tensor.name]);
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
