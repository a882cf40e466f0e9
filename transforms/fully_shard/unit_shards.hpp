#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/spi/storage.hpp>
#include <crossrank/transforms/fully_shard.hpp>

#include "transforms/fully_shard/block_pool.hpp"

namespace crossrank::transforms {

/// Memory of a gathered parameter. Once it is given back, each access to a tensor over it is an error.
class GatheredStorage final : public spi::Storage {
 public:
  GatheredStorage(std::string name, std::size_t bytes, Device device)
      : name_(std::move(name)), bytes_(bytes), device_(device) {}
  void allocate(BlockPool& pool) { memory_ = pool.take(bytes_, device_).memory; }
  void release(BlockPool& pool) noexcept { pool.give(std::exchange(memory_, {})); }
  [[nodiscard]] std::byte* data() noexcept override { return memory_.data(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return bytes_; }
  [[nodiscard]] Device device() const noexcept override { return device_; }
  [[nodiscard]] std::string revoked_by() const override;
  [[nodiscard]] bool used_on(Stream const& stream) override;

 private:
  std::string name_;
  std::size_t bytes_;
  Device device_;
  Tensor memory_{};
};

/// The parameters of one unit, sharded on dimension 0 and padded, and the calls that gather and reduce them.
///
/// Shards and their gradients are in host memory. Of a model on a GPU, gathered parameters and full gradients are on
/// the GPU, and travel from there.
class UnitShards {
 public:
  /// Bytes of the unit, which are the same on all ranks.
  struct Sizes {
    std::size_t gathered = 0;        ///< full parameters
    std::size_t full_gradients = 0;  ///< full gradients, in the dtype of the engine
    std::size_t in_reduction = 0;    ///< full gradients, in the dtype of the reduction
    std::size_t gradients = 0;       ///< gradients of the shards
  };

  UnitShards(ModelUnit const& unit, FullyShardedModel::Groups const& groups, FullyShardTransformConfig const& config,
             ShardedMemory& memory, BlockPool& pool);

  [[nodiscard]] Sizes const& sizes() const noexcept { return sizes_; }
  /// Returns whether the full parameters are here, or on their way.
  [[nodiscard]] bool has_parameters() const noexcept { return state_ != State::sharded; }
  /// Returns whether the shards have gradients.
  [[nodiscard]] bool has_gradients() const noexcept;

  /// The dtypes of gathered parameters.
  enum class GatherDtype : std::uint8_t {
    configured,  ///< `param_dtype`; values may travel as FP8 codes
    of_shards,   ///< the exact values
  };
  /// What `release` keeps for the next gather.
  enum class RetainedPart : std::uint8_t {
    nothing,
    own_part,  ///< this rank's part in the smaller group
  };

  /// Starts to gather the full parameters, unless they are gathered already.
  void start_gather(GatherDtype gather_dtype = GatherDtype::configured);
  /// Waits until the parameters are gathered.
  void finish_gather();
  /// Gives the full parameters back.
  void release(RetainedPart retained = RetainedPart::nothing);
  /// Makes the buffers into which the engine adds gradients.
  void prepare_gradients();
  /// Notes that the gradient of parameter number `member` of the unit was computed.
  void mark_used(std::size_t member);
  /// Adds the gradients of a microbatch that is not reduced to those of earlier ones, where the reduction or the shards
  /// have more bits than gradients. Sums of many microbatches would lose the later ones otherwise.
  void accumulate();
  /// Starts to average the gradients and to scatter the result.
  void start_reduction();
  /// Waits for the reduction and adds the result to the gradients of the shards.
  void finish_reduction();
  void drop_gradients() noexcept;
  void cancel() noexcept;
  /// Appends this rank's rows of each trained parameter.
  void add_trained(std::vector<TrainedTensor>& trained) const;
  /// Appends this rank's rows of each parameter.
  void add_shards(std::vector<TensorShard>& shards) const;
  /// Calls `use` with each full parameter, while they are gathered.
  void visit(std::function<void(std::string const&, Tensor const&)> const& use) const;
  /// Sets the values of the shards.
  void load(std::function<Tensor(std::string const&)> const& load_one);

 private:
  struct Member {
    std::shared_ptr<Parameter> parameter{};
    Shape shape{};
    std::int64_t rows = 0;      ///< of dimension 0; a scalar has one
    std::int64_t own_rows = 0;  ///< of this rank, without padding
    Tensor shard{};             ///< padded
    Tensor grad{};              ///< of the shard; undefined: none
    Tensor full{};              ///< padded, while gathered
    Tensor full_grad{};         ///< padded, until it is reduced
    Tensor accumulated{};       ///< gradients of earlier microbatches
    Tensor part{};              ///< of the smaller group
    Tensor fp8_codes{};         ///< FP8 codes of all ranks, while they are gathered
    double scale = 1;           ///< of the FP8 codes
    std::shared_ptr<GatheredStorage> storage{};
    bool is_used = false;
  };
  struct Reduction {
    std::vector<std::size_t> members{};
    std::vector<Tensor> results{};  ///< of the members, then how many ranks used each
    std::vector<Request> requests{};
  };

  void add(std::shared_ptr<Parameter> const& parameter);
  [[nodiscard]] MemoryOptions host_memory() const;
  void recycle_full_gradient(Member& member) noexcept;
  void drop_full_gradients(Member& member) noexcept;
  [[nodiscard]] std::vector<std::string> names() const;
  void prepare_gradient(Member& member);
  void take_over(Member& member);
  void take_full_gradients_as(Dtype dtype, Member& member);
  void note_peak() noexcept;
  [[nodiscard]] Dtype gathered_dtype(Member const& member, GatherDtype gather_dtype) const;
  [[nodiscard]] Dtype reduction_dtype(Dtype gradient) const {
    return config_.mixed_precision.reduce_dtype.value_or(gradient);
  }
  [[nodiscard]] bool travels_as_fp8(Member const& member, GatherDtype gather_dtype) const;
  void encode(Member& member, std::vector<Tensor>& ins, std::vector<Tensor>& outs);
  void decode(Member& member) const;

  std::string name_;  ///< for errors: "unit layer1"
  FullyShardedModel::Groups const& groups_;
  FullyShardTransformConfig const& config_;
  ShardedMemory& memory_;
  BlockPool& pool_;
  Device device_{};  ///< of the model
  Sizes sizes_{};
  std::vector<Member> members_{};
  std::vector<Reduction> reductions_{};
  std::vector<Request> gathers_{};
  enum class State : std::uint8_t { sharded, gathering, gathered } state_ = State::sharded;
};

}  // namespace crossrank::transforms
