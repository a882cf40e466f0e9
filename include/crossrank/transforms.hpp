#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/export.hpp>
#include <crossrank/mesh.hpp>
#include <crossrank/transforms/config.hpp>
#include <crossrank/transforms/model.hpp>
#include <crossrank/transforms/optimizer.hpp>

namespace crossrank {

/// Changes a model after it is built and before it is trained. Follows optimus_dl.
class CROSSRANK_EXPORT BaseModelTransform {
 public:
  virtual ~BaseModelTransform();
  /// Returns the changed model. The caller uses it in place of `model`.
  [[nodiscard]] virtual std::shared_ptr<TrainableModel> apply(std::shared_ptr<TrainableModel> model) = 0;
};

/// A transform over the ranks of a job.
class CROSSRANK_EXPORT BaseDistributedTransform : public BaseModelTransform {
 public:
  /// Keeps the config, the job and the device of the model.
  BaseDistributedTransform(ModelTransformConfig config, JobCollective collective, Device device);
  ~BaseDistributedTransform() override;

 protected:
  /// Returns the job.
  [[nodiscard]] JobCollective const& collective() const noexcept { return collective_; }
  /// Returns the device of the model.
  [[nodiscard]] Device device() const noexcept { return device_; }
  /// Throws `UsageError` for no model, for a parameter that is null, without values, on another device or with a sparse
  /// gradient, and for two parameters or buffers of one name.
  void require_parameters(TrainableModel const* model, char const* operation) const;

 private:
  ModelTransformConfig config_;
  JobCollective collective_;
  Device device_;
};

/// Applies transforms one after the other.
[[nodiscard]] CROSSRANK_EXPORT std::shared_ptr<TrainableModel> apply_transforms(
    std::span<std::shared_ptr<BaseModelTransform> const> transforms, std::shared_ptr<TrainableModel> model);

/// Changes how one bucket of gradients travels. The same on all ranks.
struct CommunicationHook {
  std::function<Tensor(Tensor const& gradients)> compress{};  ///< returns what the ranks average in place of the bucket
  std::function<void(Tensor const& reduced, Tensor& gradients)> decompress{};  ///< writes the result into the bucket
};

/// Returns the hook that sends gradients as BF16. Follows `bf16_compress_hook` of PyTorch.
[[nodiscard]] CROSSRANK_EXPORT CommunicationHook bf16_compress_hook();

/// Skips the reduction of gradients for a scope.
class CROSSRANK_EXPORT NoSync {
 public:
  /// Sets `flag`, which outlives this, to `sync` until the end of the scope.
  NoSync(bool& flag, bool sync) noexcept : flag_(&flag), before_(flag) { flag = sync; }
  /// Restores the flag.
  ~NoSync() { *flag_ = before_; }
  NoSync(NoSync const&) = delete;
  NoSync& operator=(NoSync const&) = delete;

 private:
  bool* flag_;
  bool before_;
};

/// A model whose gradients are averaged over the data-parallel ranks during the backward pass.
///
/// A bucket is reduced as soon as its last gradient is ready. With `ProgressMode::thread` that overlaps the rest of the
/// backward pass. `backward` returns when all gradients are reduced. An exception in `forward` or `backward` of one
/// rank ends the step on all ranks, whose errors contain its message. Follows `DistributedDataParallel` of PyTorch.
class CROSSRANK_EXPORT DDPWrappedModel final : public TrainableModel, private TrainingObserver {
 public:
  /// For `DDPTransform`.
  DDPWrappedModel(std::shared_ptr<TrainableModel> model, Collective group, DDPTransformConfig config);
  ~DDPWrappedModel() override;

  [[nodiscard]] std::vector<ModelUnit> units() const override;
  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> buffers() const override;
  /// Broadcasts the buffers from rank 0, then runs the model.
  [[nodiscard]] std::vector<Tensor> forward(std::span<Tensor const> inputs) override;
  /// Runs the backward pass and reduces the gradients. `UsageError` names parameters that got no gradient, unless
  /// `find_unused_parameters` is set.
  void backward(std::span<Tensor const> gradients) override;
  void observe(TrainingObserver* observer) override;
  [[nodiscard]] std::vector<TrainedTensor> trained_tensors() override;
  [[nodiscard]] std::vector<TensorShard> sharded_state_dict() override;
  void zero_grad() override;
  [[nodiscard]] double sum_over_shards(double local) override;
  void abort(std::string_view why) noexcept override;

  /// Returns a scope in which gradients are only accumulated on this rank. All ranks use it for the same steps.
  [[nodiscard]] NoSync no_sync() noexcept { return NoSync(sync_, false); }
  /// Returns a scope that reduces gradients only for the last microbatch.
  [[nodiscard]] NoSync accumulation_context(bool is_last_microbatch) noexcept {
    return NoSync(sync_, is_last_microbatch);
  }
  /// Sets how buckets travel. Before the first step, the same on all ranks. `UsageError` for a hook with one function.
  void register_comm_hook(CommunicationHook hook);
  /// Returns the names of the parameters of each bucket, in the order in which buckets are reduced.
  [[nodiscard]] std::vector<std::vector<std::string>> buckets() const;

 private:
  void before_unit(std::size_t unit, Pass pass) override;
  void after_unit(std::size_t unit, Pass pass) override;
  void gradient_ready(Parameter& parameter) override;

  struct State;
  std::unique_ptr<State> state_;
  bool sync_ = true;
};

/// Wraps a model for data-parallel training.
class CROSSRANK_EXPORT DDPTransform final : public BaseDistributedTransform {
 public:
  /// Keeps the config, the job and the device.
  DDPTransform(DDPTransformConfig config, JobCollective collective, Device device = {});
  /// Returns a `DDPWrappedModel`; the model itself in a job of one data-parallel rank.
  ///
  /// Collective over the data-parallel group. Compares settings, units, names, shapes and dtypes, then broadcasts the
  /// values of rank 0 in one call for each 256 MiB. `MismatchError` names the first one that differs. `UsageError` for
  /// a mesh that shards, for a parameter with a sparse gradient or on another device, and for two of one name. For a
  /// model on a GPU, the buckets are on that GPU.
  [[nodiscard]] std::shared_ptr<TrainableModel> apply(std::shared_ptr<TrainableModel> model) override;

 private:
  DDPTransformConfig config_;
};

}  // namespace crossrank
