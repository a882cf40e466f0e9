#pragma once
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <crossrank/export.hpp>
#include <crossrank/json.hpp>
#include <crossrank/state.hpp>
#include <crossrank/transforms/model.hpp>

namespace crossrank {

/// An optimizer over the trained tensors of a model: whole parameters, or this rank's shards.
///
/// Works on one element at a time, so that a sharded model gets the same values as a whole one.
class CROSSRANK_EXPORT Optimizer {
 public:
  /// Makes an optimizer for `model`, which it keeps. `UsageError` for no model, and for two parameters of one name.
  explicit Optimizer(std::shared_ptr<TrainableModel> model);
  virtual ~Optimizer();
  Optimizer(Optimizer const&) = delete;
  Optimizer& operator=(Optimizer const&) = delete;

  /// Changes all tensors that have a gradient. Local. An exception ends the training on all ranks.
  void step();
  /// Returns the number of steps so far.
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  /// Returns the optimizer's tensors by "parameter.kind", for example "fc.weight.exp_avg". Views, not copies. A kind
  /// has the shape of this rank's part of the parameter, or one number, such as "fc.weight.step".
  [[nodiscard]] StateDict const& state() const noexcept { return state_; }
  /// Returns the name of the algorithm, such as "AdamW".
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  /// Returns the kinds of tensors that the algorithm keeps for each parameter. The names are those of PyTorch.
  [[nodiscard]] virtual std::vector<std::string_view> kinds() const = 0;
  /// Returns the settings under the names that PyTorch gives them in `param_groups`, without the parameters; an empty
  /// object if PyTorch has no such optimizer.
  [[nodiscard]] virtual Json param_group() const;
  /// Returns the model that this optimizer trains.
  [[nodiscard]] TrainableModel& model() const noexcept { return *model_; }
  /// Replaces the state and the number of steps. `UsageError` names a tensor that no parameter has, of an unknown kind,
  /// or of another shape or dtype, and refuses a negative number of steps. Local.
  void load_state(StateDict state, std::int64_t steps);
  /// Returns a new tensor for one kind of a parameter's state, filled with zeros: F64 for a number and for F64
  /// parameters, else F32. In pinned memory if the tensor is.
  [[nodiscard]] static Tensor make_state(TrainedTensor const& tensor, std::string_view kind);

 protected:
  /// Changes one tensor.
  virtual void update(TrainedTensor& tensor) = 0;
  /// Returns the state of a tensor under `kind`, from `make_state` at first.
  [[nodiscard]] Tensor& state_of(TrainedTensor const& tensor, std::string_view kind);

 private:
  std::shared_ptr<TrainableModel> model_;
  StateDict state_{};
  std::int64_t steps_ = 0;
};

/// Says how `SGD` trains. Every number is at least 0.
struct SGDOptions {
  double lr = 1e-3;         ///< learning rate
  double momentum = 0;      ///< factor of the earlier direction
  double weight_decay = 0;  ///< added to the gradient, times the value
};

/// Stochastic gradient descent with momentum. Follows `torch.optim.SGD`.
class CROSSRANK_EXPORT SGD final : public Optimizer {
 public:
  /// Makes the optimizer. `UsageError` for an option out of range, here and in `step`.
  SGD(std::shared_ptr<TrainableModel> model, SGDOptions options);
  /// Returns the options, which a schedule may change between steps, alike on all ranks.
  [[nodiscard]] SGDOptions& options() noexcept { return options_; }
  [[nodiscard]] std::string_view name() const noexcept override { return "SGD"; }
  [[nodiscard]] std::vector<std::string_view> kinds() const override;
  [[nodiscard]] Json param_group() const override;

 private:
  void update(TrainedTensor& tensor) override;
  SGDOptions options_;
};

/// Says how `AdamW` trains. Every number is at least 0.
struct AdamWOptions {
  double lr = 1e-3;            ///< learning rate
  double beta1 = 0.9;          ///< decay of the mean gradient, below 1
  double beta2 = 0.999;        ///< decay of the mean square, below 1
  double eps = 1e-8;           ///< added to the denominator
  double weight_decay = 0.01;  ///< decay of the values, times the learning rate
};

/// Adam with decoupled weight decay. Follows `torch.optim.AdamW`.
class CROSSRANK_EXPORT AdamW final : public Optimizer {
 public:
  /// Makes the optimizer. `UsageError` for an option out of range, here and in `step`.
  AdamW(std::shared_ptr<TrainableModel> model, AdamWOptions options);
  /// Returns the options, which a schedule may change between steps, alike on all ranks.
  [[nodiscard]] AdamWOptions& options() noexcept { return options_; }
  [[nodiscard]] std::string_view name() const noexcept override { return "AdamW"; }
  [[nodiscard]] std::vector<std::string_view> kinds() const override;
  [[nodiscard]] Json param_group() const override;

 private:
  void update(TrainedTensor& tensor) override;
  AdamWOptions options_;
};

/// Scales all gradients so that their common norm is at most `max_norm`. Returns the norm before that.
///
/// Collective for a sharded model; one reduction of a number. Follows `torch.nn.utils.clip_grad_norm_`.
CROSSRANK_EXPORT double clip_grad_norm(TrainableModel& model, double max_norm);

}  // namespace crossrank
