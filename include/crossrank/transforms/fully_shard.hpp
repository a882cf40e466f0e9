#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/export.hpp>
#include <crossrank/transforms.hpp>

namespace crossrank {

/// The memory of a sharded model on this rank, in bytes.
struct ShardedMemory {
  std::size_t shards = 0;               ///< own shards of the parameters
  std::size_t gathered = 0;             ///< gathered parameters at the moment
  std::size_t peak_gathered = 0;        ///< largest value of `gathered` so far
  std::size_t largest_unit = 0;         ///< gathered parameters of the largest unit
  std::size_t full_gradients = 0;       ///< unreduced gradients at the moment
  std::size_t peak_full_gradients = 0;  ///< largest value of `full_gradients` so far
  std::size_t gradients = 0;            ///< gradients of the shards at the moment
  std::size_t peak = 0;                 ///< largest sum of `gathered`, `full_gradients` and `gradients` so far
};

/// A model whose parameters are sharded over ranks and gathered unit by unit.
///
/// Each rank holds a part of each parameter along dimension 0, padded to equal lengths. A unit is gathered before it
/// runs, while the next one is fetched, and given back afterwards. A tensor that the caller took from
/// `Parameter::value` while it was gathered is a `UsageError` to read once the unit was given back. Exceptions end the
/// step on all ranks, as under DDP. Follows `fully_shard` of PyTorch.
class CROSSRANK_EXPORT FullyShardedModel final : public TrainableModel, private TrainingObserver {
 public:
  /// The groups of a sharded model.
  struct Groups {
    Collective shard{};      ///< ranks that together hold one copy
    Collective replicate{};  ///< ranks with the same shard; without a group: none
    Collective smaller{};    ///< for a number in `reshard_after_forward`
  };
  /// For `FullyShardTransform`.
  FullyShardedModel(std::shared_ptr<TrainableModel> model, Groups groups, FullyShardTransformConfig config);
  ~FullyShardedModel() override;

  [[nodiscard]] std::vector<ModelUnit> units() const override;
  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> buffers() const override;
  [[nodiscard]] std::vector<Tensor> forward(std::span<Tensor const> inputs) override;
  /// Runs the backward pass. The gradients of the shards are complete when it returns.
  void backward(std::span<Tensor const> gradients) override;
  void observe(TrainingObserver* observer) override;
  /// Returns this rank's rows of the parameters and their gradients. Gives all gathered parameters back.
  [[nodiscard]] std::vector<TrainedTensor> trained_tensors() override;
  /// Returns this rank's rows of all parameters, and the buffers. Gives all gathered parameters back.
  [[nodiscard]] std::vector<TensorShard> sharded_state_dict() override;
  void zero_grad() override;
  [[nodiscard]] double sum_over_shards(double local) override;
  void abort(std::string_view why) noexcept override;

  /// Returns a scope that reduces gradients only for the last microbatch, unless `sync_grad_accum` is set.
  [[nodiscard]] NoSync accumulation_context(bool is_last_microbatch) noexcept;
  /// Calls `use` with each full parameter in turn, one unit gathered at a time. Collective; every rank passes a
  /// callable.
  void for_each_parameter(std::function<void(std::string const& name, Tensor const& value)> const& use);
  /// Sets the parameters, unit by unit: `load(name)` returns the full value; this rank keeps its rows. Local. A value
  /// of another shape ends the call with `UsageError`; parameters before it are set, and the group stays usable.
  void load_parameters(std::function<Tensor(std::string const& name)> const& load);
  /// Returns the memory that the model uses on this rank. Local.
  [[nodiscard]] ShardedMemory memory() const noexcept;

 private:
  void before_unit(std::size_t unit, Pass pass) override;
  void after_unit(std::size_t unit, Pass pass) override;
  void gradient_ready(Parameter& parameter) override;

  struct State;
  std::unique_ptr<State> state_;
  bool sync_ = true;
};

/// Shards a model over the ranks of a mesh.
class CROSSRANK_EXPORT FullyShardTransform final : public BaseDistributedTransform {
 public:
  /// Keeps the config, the job and the device.
  FullyShardTransform(FullyShardTransformConfig config, JobCollective collective, Device device = {});
  /// Returns a `FullyShardedModel`; the model itself in a job of one data-parallel rank.
  ///
  /// Collective over the data-parallel group. The values of rank 0 are scattered and its buffers broadcast, so that all
  /// ranks begin alike. `MismatchError` names the first setting, unit, parameter or buffer that differs. `UsageError`
  /// for a job without a mesh, for a number of ranks that `reshard_after_forward` does not divide, for a dtype of the
  /// mixed precision that cannot be computed with, and for a model on a GPU without `cpu_offload`.
  [[nodiscard]] std::shared_ptr<TrainableModel> apply(std::shared_ptr<TrainableModel> model) override;

 private:
  FullyShardTransformConfig config_;
};

}  // namespace crossrank
