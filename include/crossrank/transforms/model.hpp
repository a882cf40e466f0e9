#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/export.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank {

/// Says how an engine stores the gradient of a parameter.
enum class GradientLayout : std::uint8_t {
  dense,   ///< a tensor with the shape of the parameter
  sparse,  ///< only some rows; the transforms refuse it
};

/// A parameter or buffer of a model.
///
/// The engine adds to `grad` in place where it is defined, and defines it otherwise, with the shape and dtype of
/// `value`. A transform may replace `value` and `grad` between two events of the training, so the engine reads them
/// anew each time.
struct Parameter {
  std::string name{};                                  ///< name in the model, unique
  Tensor value{};                                      ///< the values
  Tensor grad{};                                       ///< the gradient; undefined: none
  bool requires_grad = true;                           ///< false for a frozen parameter or a buffer
  GradientLayout grad_layout = GradientLayout::dense;  ///< how the engine stores `grad`
};

/// A part of a model that runs as a whole, such as one layer.
struct ModelUnit {
  std::string name{};                                    ///< name of the unit
  std::vector<std::shared_ptr<Parameter>> parameters{};  ///< its parameters; a tied one is in several units
};

/// The two directions in which a unit runs.
enum class Pass : std::uint8_t { forward, backward };

/// Receives the events of one training step from the engine. All calls come from the thread that runs the step.
///
/// A backward pass may run a unit forward again, for activations that the engine has not kept. It reports that run as
/// `Pass::forward`, before the unit's backward pass or inside it.
class CROSSRANK_EXPORT TrainingObserver {
 public:
  virtual ~TrainingObserver();
  /// Called before unit `unit` runs: its values are read after this, and in the backward pass its gradients are
  /// written.
  virtual void before_unit(std::size_t unit, Pass pass) = 0;
  /// Called after unit `unit` has run: neither its values nor its gradients are used until it runs again.
  virtual void after_unit(std::size_t unit, Pass pass) = 0;
  /// Called when the gradient of a parameter is complete for this backward pass.
  virtual void gradient_ready(Parameter& parameter) = 0;
};

/// A tensor that an optimizer trains: a parameter, or this rank's shard of one.
struct TrainedTensor {
  std::string name{};  ///< name of the parameter
  Tensor value{};      ///< changed in place
  Tensor grad{};       ///< undefined: not trained in this step
};

/// This rank's rows of a parameter or buffer.
struct TensorShard {
  std::string name{};          ///< name in the model
  Tensor value{};              ///< the rows; a view, so that writing changes the model
  Shape shape{};               ///< shape of the whole tensor
  std::int64_t first_row = 0;  ///< place of the first row along dimension 0 of the whole tensor
};

/// The adapter between an engine and the transforms: named parameters, events, forward and backward.
///
/// An engine derives from it. The transforms do not depend on autograd: they see tensors and the events that the engine
/// reports to its observer. Members are local unless a wrapped model says otherwise.
class CROSSRANK_EXPORT TrainableModel {
 public:
  virtual ~TrainableModel();
  /// Returns the units in the order in which they run forward.
  [[nodiscard]] virtual std::vector<ModelUnit> units() const = 0;
  /// Returns the buffers: values that are not trained, and are the same on all ranks.
  [[nodiscard]] virtual std::vector<std::shared_ptr<Parameter>> buffers() const;
  /// Runs the model and keeps what the backward pass needs.
  [[nodiscard]] virtual std::vector<Tensor> forward(std::span<Tensor const> inputs) = 0;
  /// Runs the backward pass of the last `forward`, from the gradients of its outputs.
  virtual void backward(std::span<Tensor const> gradients) = 0;
  /// Sets the observer of later steps; null: none. The observer outlives its use. Engines implement it; wrapped models
  /// call `set_observer`.
  virtual void observe(TrainingObserver* observer) = 0;
  /// Makes `observer` the observer of later steps.
  void set_observer(TrainingObserver& observer);
  /// Ends the observation, unless the model has got another observer since: a model that is wrapped anew has the new
  /// wrapper's.
  void remove_observer(TrainingObserver const& observer);

  /// Returns the tensors that an optimizer trains, with the gradients that they have now.
  [[nodiscard]] virtual std::vector<TrainedTensor> trained_tensors();
  /// Returns this rank's part of all parameters and buffers: whole tensors, unless the model is sharded. A rank without
  /// rows of a tensor has an empty part.
  [[nodiscard]] virtual std::vector<TensorShard> sharded_state_dict();
  /// Drops all gradients.
  virtual void zero_grad();
  /// Returns the sum of `local` over all ranks that hold different shards. Collective for a sharded model. An engine
  /// that shards parameters itself, such as over tensor-parallel ranks, overrides it; the transforms call it.
  [[nodiscard]] virtual double sum_over_shards(double local);
  /// Ends the training on all ranks; their errors say `why`. Never throws.
  virtual void abort(std::string_view why) noexcept;

  /// Returns the parameters of all units, each once, in the order of the units.
  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> parameters() const;

 private:
  TrainingObserver* observer_ = nullptr;  ///< the one of `set_observer`
};

}  // namespace crossrank
