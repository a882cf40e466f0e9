#pragma once
#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <crossrank/torch/module_model.hpp>
#include <crossrank/transforms.hpp>
#include <crossrank/transforms/fully_shard.hpp>

namespace crossrank::torch {

namespace detail {

/// The rows of a sharded model as variables for an optimizer of LibTorch.
class ShardVariables {
 public:
  explicit ShardVariables(TrainableModel& model) : model_(model) {
    for (auto const& trained : model_.trained_tensors()) {
      auto variable = share(trained.value);
      variable.set_requires_grad(true);
      variables_.push_back(std::move(variable));
    }
    given_.resize(variables_.size());
  }
  [[nodiscard]] std::vector<at::Tensor> const& all() const noexcept { return variables_; }

  /// Before a backward pass: drops gradients that the optimizer has dropped.
  void pull() {
    auto const dropped = [&](std::size_t i) { return given_[i] && !variables_[i].grad().defined(); };
    std::size_t given = 0;
    std::size_t missing = 0;
    for (std::size_t i = 0; i < variables_.size(); ++i) {
      if (given_[i]) ++given;
      if (dropped(i)) ++missing;
    }
    if (missing == 0) return;
    if (missing == given) return model_.zero_grad();
    auto trained = model_.trained_tensors();
    for (std::size_t i = 0; i < trained.size(); ++i) {  // an optimizer of some of the parameters
      if (dropped(i) && trained[i].grad.nbytes() != 0)
        std::memset(trained[i].grad.mutable_bytes().data(), 0, trained[i].grad.nbytes());
    }
  }
  /// After a backward pass: hands the reduced gradients out.
  void publish() {
    auto const trained = model_.trained_tensors();
    for (std::size_t i = 0; i < variables_.size(); ++i) {
      variables_[i].mutable_grad() = share(trained[i].grad);
      given_[i] = trained[i].grad.defined();
    }
  }
  void drop_gradients() {
    for (auto& variable : variables_) variable.mutable_grad() = at::Tensor();
  }

 private:
  TrainableModel& model_;
  std::vector<at::Tensor> variables_{};
  std::vector<bool> given_{};  ///< whether the last pass left a gradient
};

}  // namespace detail

/// A module of LibTorch that trains on several ranks. `ddp` and `fully_shard` make one.
///
/// Use it instead of the module: call `forward`, `loss.backward()` of LibTorch, and an optimizer over
/// `parameters()`. Gradients are reduced when `backward()` returns. Copies are handles of the same model. An exception
/// in `forward` or in the model's part of the backward pass ends the step on all ranks, whose errors contain its
/// message.
template <std::derived_from<::torch::nn::Module> M>
class DistributedModule {
 public:
  /// For `ddp` and `fully_shard`.
  template <class Transform>
  DistributedModule(std::shared_ptr<M> module, Transform&& transform)
      : state_(std::make_shared<State>(State{.module = module, .engine = std::make_shared<ModuleModel>(module)})) {
    auto& state = *state_;
    state.model = transform.apply(state.engine);
    if (sharded() == nullptr) return;
    state.shards = std::make_shared<detail::ShardVariables>(*state.model);
    state.engine->before_backward = [shards = state.shards] { shards->pull(); };
    state.engine->after_backward = [shards = state.shards] { shards->publish(); };
  }

  /// Runs the module's `forward` on copies of the arguments. Collective; all ranks call it equally often.
  ///
  /// Tensors in the arguments and results, also in vectors, arrays and tuples, carry gradients; inputs that are not
  /// contiguous are copied. One backward pass belongs to each forward pass, without second derivatives. With one rank
  /// it is the module's own call.
  template <class... Args>
  auto forward(Args const&... args) {
    auto const forward = [module = state_->module](auto const&... own) { return module->forward(own...); };
    if (state_->model == state_->engine) return forward(args...);
    auto const run = [&](detail::Tensors const& inputs, detail::Body const& body) {
      return state_->engine->run(state_->model, inputs, body);
    };
    return detail::call_through(run, forward, args...);
  }

  /// Returns the variables for an optimizer of LibTorch: the module's parameters, each once, or this rank's rows of the
  /// trained ones if it is sharded.
  ///
  /// Norms over the rows of a sharded module, such as that of LibTorch's `clip_grad_norm_`, are those of this rank
  /// alone: clip with `clip_grad_norm(*model.model(), max)`. `zero_grad` of the sharded module itself does nothing:
  /// call that of this class or of the optimizer.
  [[nodiscard]] std::vector<at::Tensor> parameters() const {
    if (state_->shards) return state_->shards->all();
    std::vector<at::Tensor> all;
    for (auto const& parameter : state_->module->parameters()) {
      auto const same = [&](at::Tensor const& other) { return other.is_same(parameter); };
      if (std::none_of(all.begin(), all.end(), same)) all.push_back(parameter);  // a tied one has several names
    }
    return all;
  }
  /// Drops all gradients, also unreduced ones.
  void zero_grad() {
    state_->model->zero_grad();
    state_->engine->zero_grad();
    if (state_->shards) state_->shards->drop_gradients();
  }
  /// Returns a scope that reduces gradients only for the last microbatch. See `DDPWrappedModel` and
  /// `FullyShardedModel`.
  [[nodiscard]] NoSync accumulation_context(bool is_last_microbatch) noexcept {
    if (auto* const wrapped = dynamic_cast<DDPWrappedModel*>(state_->model.get()); wrapped != nullptr)
      return wrapped->accumulation_context(is_last_microbatch);
    if (auto* const wrapped = sharded(); wrapped != nullptr) return wrapped->accumulation_context(is_last_microbatch);
    return NoSync(state_->alone_sync, is_last_microbatch);
  }
  /// Returns a scope in which gradients are only accumulated on this rank.
  [[nodiscard]] NoSync no_sync() noexcept { return accumulation_context(false); }
  /// Ends the training on all ranks; their errors say `why`. For failures outside the model, such as in the loss.
  void abort(std::string_view why) noexcept { state_->model->abort(why); }

  /// Returns the module. While it is sharded, its own parameters are empty, except for units that run.
  [[nodiscard]] std::shared_ptr<M> const& module() const noexcept { return state_->module; }
  /// Returns the model for the calls of crossrank: optimizers, `clip_grad_norm`, `save_checkpoint`.
  [[nodiscard]] std::shared_ptr<TrainableModel> const& model() const noexcept { return state_->model; }
  /// Returns the model if it is sharded, else null.
  [[nodiscard]] FullyShardedModel* sharded() const noexcept {
    return dynamic_cast<FullyShardedModel*>(state_->model.get());
  }

 private:
  struct State {
    std::shared_ptr<M> module;
    std::shared_ptr<ModuleModel> engine;
    std::shared_ptr<TrainableModel> model{};  ///< the engine itself with one rank
    std::shared_ptr<detail::ShardVariables> shards{};
    bool alone_sync = true;
  };
  std::shared_ptr<State> state_;
};

/// Trains a module with one replica on each rank. Buckets of gradients are reduced during the backward pass.
///
/// Collective, as `DDPTransform::apply`, with its errors: the parameters and buffers of rank 0 reach all ranks.
/// `find_unused_parameters` is needed when a backward pass leaves parameters out. `UsageError` also for parameters that
/// are not contiguous, and, in the backward pass, for sparse gradients.
template <std::derived_from<::torch::nn::Module> M>
[[nodiscard]] DistributedModule<M> ddp(std::shared_ptr<M> module, JobCollective collective,
                                       DDPTransformConfig config = {}) {
  return DistributedModule<M>(std::move(module), DDPTransform(std::move(config), std::move(collective)));
}

/// Shards a module over the ranks of a mesh. Each `Unit` of the module is gathered before it runs; parameters outside
/// units are gathered for the whole pass.
///
/// Collective, as `FullyShardTransform::apply`, with its errors. The module's parameters are empty from then on, except
/// while their unit runs; keep no views of them. `parameters()` returns this rank's rows. With `param_dtype`, units
/// compute in that dtype.
template <std::derived_from<::torch::nn::Module> M>
[[nodiscard]] DistributedModule<M> fully_shard(std::shared_ptr<M> module, JobCollective collective,
                                               FullyShardTransformConfig config = {}) {
  return DistributedModule<M>(std::move(module), FullyShardTransform(std::move(config), std::move(collective)));
}

/// Does the same for the holder that `TORCH_MODULE` makes.
template <class Holder>
requires requires(Holder const& holder) { typename Holder::ContainedType; }
[[nodiscard]] auto ddp(Holder const& holder, JobCollective collective, DDPTransformConfig config = {}) {
  return ddp(holder.ptr(), std::move(collective), std::move(config));
}

/// Does the same for the holder that `TORCH_MODULE` makes.
template <class Holder>
requires requires(Holder const& holder) { typename Holder::ContainedType; }
[[nodiscard]] auto fully_shard(Holder const& holder, JobCollective collective, FullyShardTransformConfig config = {}) {
  return fully_shard(holder.ptr(), std::move(collective), std::move(config));
}

}  // namespace crossrank::torch
