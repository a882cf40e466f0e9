#include <cmath>
#include <exception>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/transforms/optimizer.hpp>

#include "transforms/optimizer/element_update.hpp"

namespace crossrank {
namespace {

using transforms::update_elements;
using transforms::with_real;

/// Calls `change` with copies on the host of what is on a GPU, and copies the result back.
template <class Change>
void on_host(TrainedTensor& tensor, Tensor& changed, Change const& change) {
  if (changed.device() == Device::cpu()) return change(tensor);
  TrainedTensor host{tensor.name, tensor.value.to(Device::cpu()), tensor.grad.to(Device::cpu())};
  change(host);
  changed.copy_from(&changed == &tensor.value ? host.value : host.grad);
}

std::string state_name(TrainedTensor const& tensor, std::string_view kind) {
  return tensor.name + "." + std::string(kind);
}

struct NamedOption {
  char const* name;
  double value;
  bool is_below_one = false;
};

/// Throws `UsageError` for an option that PyTorch's optimizer refuses, or that is not finite.
void require_options(std::string_view optimizer, std::initializer_list<NamedOption> options) {
  for (auto const& [name, value, is_below_one] : options) {
    if (std::isfinite(value) && value >= 0 && (!is_below_one || value < 1)) continue;
    throw UsageError({.operation = std::string(optimizer),
                      .message = "an option of the optimizer is out of range",
                      .expected = is_below_one ? "a number from 0 to below 1" : "a number of at least 0",
                      .got = std::to_string(value),
                      .resource = name,
                      .hint = "correct the option; a schedule must keep it in range too"});
  }
}

void require_valid(SGDOptions const& options) {
  require_options("SGD", {{"lr", options.lr}, {"momentum", options.momentum}, {"weight_decay", options.weight_decay}});
}

void require_valid(AdamWOptions const& options) {
  require_options("AdamW", {{"lr", options.lr},
                            {"beta1", options.beta1, true},
                            {"beta2", options.beta2, true},
                            {"eps", options.eps},
                            {"weight_decay", options.weight_decay}});
}

}  // namespace

Optimizer::Optimizer(std::shared_ptr<TrainableModel> model) : model_(std::move(model)) {
  if (!model_) {
    throw UsageError({.operation = "Optimizer",
                      .message = "there is no model to train",
                      .hint = "pass the model that the transform returned"});
  }
  std::set<std::string> names;
  for (auto const& parameter : model_->parameters()) {
    if (names.insert(parameter->name).second) continue;
    throw UsageError({.operation = "Optimizer",
                      .message = "two parameters have this name, under which the optimizer keeps their state",
                      .resource = parameter->name,
                      .hint = "give each parameter a name of its own"});
  }
}
Optimizer::~Optimizer() = default;

Json Optimizer::param_group() const { return Json::object(); }

void Optimizer::step() {
  std::string place;
  try {
    ++steps_;
    for (auto& tensor : model_->trained_tensors()) {
      place = " at " + tensor.name;
      if (tensor.grad.defined()) on_host(tensor, tensor.value, [&](TrainedTensor& host) { update(host); });
    }
  } catch (std::exception const& e) {
    model_->abort("the optimizer's step failed" + place + ": " + e.what());
    throw;
  } catch (...) {
    model_->abort("the optimizer's step failed" + place + " with an exception of an unknown type");
    throw;
  }
}

Tensor Optimizer::make_state(TrainedTensor const& tensor, std::string_view kind) {
  if (kind == "step") return Tensor::scalar(0.0);
  auto const dtype = tensor.value.dtype() == Dtype::f64 ? Dtype::f64 : Dtype::f32;
  return Tensor::zeros(tensor.value.shape(), dtype, {.pinned = tensor.value.is_pinned()});
}

Tensor& Optimizer::state_of(TrainedTensor const& tensor, std::string_view kind) {
  auto& state = state_[state_name(tensor, kind)];
  if (!state.defined()) state = make_state(tensor, kind);
  return state;
}

void Optimizer::load_state(StateDict state, std::int64_t steps) {
  if (steps < 0) {
    throw UsageError({.operation = "Optimizer.load_state",
                      .message = "the number of steps is negative",
                      .expected = "a number of at least 0",
                      .got = std::to_string(steps),
                      .resource = "steps",
                      .hint = "pass the number of steps that the saved optimizer had made"});
  }
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

SGD::SGD(std::shared_ptr<TrainableModel> model, SGDOptions options) : Optimizer(std::move(model)), options_(options) {
  require_valid(options_);
}

/// Also without momentum: a schedule may have changed it, and may change it again.
std::vector<std::string_view> SGD::kinds() const { return {"momentum_buffer"}; }

Json SGD::param_group() const {
  return {{"lr", options_.lr},  {"momentum", options_.momentum},
          {"dampening", 0},     {"weight_decay", options_.weight_decay},
          {"nesterov", false},  {"maximize", false},
          {"foreach", nullptr}, {"differentiable", false},
          {"fused", nullptr}};
}

void SGD::update(TrainedTensor& tensor) {
  require_valid(options_);  // a schedule may have changed them
  with_real(tensor.value.dtype(), [&]<class Real>(Real) {
    auto const lr = static_cast<Real>(options_.lr);
    auto const decay = static_cast<Real>(options_.weight_decay);
    auto const momentum = static_cast<Real>(options_.momentum);
    // Without weight decay, an infinite value adds nothing: 0 * inf is NaN.
    bool const decays = options_.weight_decay != 0;
    auto const gradient = [=](Real grad, Real value) { return decays ? grad + decay * value : grad; };
    if (options_.momentum == 0) {
      auto const kernel = [=](std::size_t count, Real* value, Real const* grad) {
        for (std::size_t i = 0; i < count; ++i) value[i] -= lr * gradient(grad[i], value[i]);
      };
      return update_elements<Real>(kernel, tensor.value, std::as_const(tensor.grad));
    }
    auto const kernel = [=](std::size_t count, Real* value, Real const* grad, Real* buffer) {
      for (std::size_t i = 0; i < count; ++i) {
        buffer[i] = momentum * buffer[i] + gradient(grad[i], value[i]);
        value[i] -= lr * buffer[i];
      }
    };
    update_elements<Real>(kernel, tensor.value, std::as_const(tensor.grad), state_of(tensor, "momentum_buffer"));
  });
}

AdamW::AdamW(std::shared_ptr<TrainableModel> model, AdamWOptions options)
    : Optimizer(std::move(model)), options_(options) {
  require_valid(options_);
}

std::vector<std::string_view> AdamW::kinds() const { return {"step", "exp_avg", "exp_avg_sq"}; }

Json AdamW::param_group() const {
  return {{"lr", options_.lr},
          {"betas", {options_.beta1, options_.beta2}},
          {"eps", options_.eps},
          {"weight_decay", options_.weight_decay},
          {"amsgrad", false},
          {"maximize", false},
          {"foreach", nullptr},
          {"capturable", false},
          {"differentiable", false},
          {"fused", nullptr},
          {"decoupled_weight_decay", true}};
}

/// The factors that are the same for all elements are computed as doubles, as PyTorch does.
void AdamW::update(TrainedTensor& tensor) {
  require_valid(options_);  // a schedule may have changed them
  auto const step = ++state_of(tensor, "step").as_mutable<double>()[0];
  auto mean = state_of(tensor, "exp_avg");
  auto square = state_of(tensor, "exp_avg_sq");
  with_real(tensor.value.dtype(), [&]<class Real>(Real) {
    auto const kept = static_cast<Real>(1 - options_.lr * options_.weight_decay);
    auto const mean_weight = static_cast<Real>(1 - options_.beta1);
    // As `torch.lerp`: the form that is exact near the end that weighs more.
    bool const near_grad = options_.beta1 <= 0.5;
    auto const square_kept = static_cast<Real>(options_.beta2);
    auto const square_weight = static_cast<Real>(1 - options_.beta2);
    auto const rate = static_cast<Real>(options_.lr / (1 - std::pow(options_.beta1, step)));
    auto const root = static_cast<Real>(std::sqrt(1 - std::pow(options_.beta2, step)));
    auto const eps = static_cast<Real>(options_.eps);
    auto const kernel = [=](std::size_t count, Real* value, Real const* grad, Real* m, Real* v) {
      for (std::size_t i = 0; i < count; ++i) {
        auto const change = grad[i] - m[i];
        m[i] = near_grad ? grad[i] - change * (1 - mean_weight) : m[i] + mean_weight * change;
        v[i] = square_kept * v[i] + square_weight * grad[i] * grad[i];
        value[i] = kept * value[i] - rate * (m[i] / (std::sqrt(v[i]) / root + eps));
      }
    };
    update_elements<Real>(kernel, tensor.value, std::as_const(tensor.grad), mean, square);
  });
}

double clip_grad_norm(TrainableModel& model, double max_norm) {
  auto trained = model.trained_tensors();
  std::erase_if(trained, [](auto const& tensor) { return !tensor.grad.defined(); });
  double squares = 0;
  for (auto const& tensor : trained) {
    auto const grad = tensor.grad.to(Device::cpu());
    update_elements<double>(
        [&](std::size_t count, double const* values) {
          for (std::size_t i = 0; i < count; ++i) squares += values[i] * values[i];
        },
        grad);
  }
  auto const norm = std::sqrt(model.sum_over_shards(squares));
  if (norm <= max_norm) return norm;
  auto const scale = [&](TrainedTensor& tensor) {
    with_real(tensor.grad.dtype(), [&]<class Real>(Real) {
      auto const factor = static_cast<Real>(max_norm / (norm + 1e-6));
      update_elements<Real>(
          [=](std::size_t count, Real* grad) {
            for (std::size_t i = 0; i < count; ++i) grad[i] *= factor;
          },
          tensor.grad);
    });
  };
  for (auto& tensor : trained) on_host(tensor, tensor.grad, scale);
  return norm;
}

}  // namespace crossrank
