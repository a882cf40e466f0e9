#pragma once
#include <string>
#include <vector>

#include <crossrank/state.hpp>

#include "workspace/checkpoint/shard_source.hpp"

namespace crossrank::checkpoint {

/// Weights in memory as a source.
class StateSource final : public ShardSource {
 public:
  /// `UsageError` for an absent tensor and for one that is not on the CPU.
  StateSource(std::string name, StateDict const& weights);

  [[nodiscard]] std::string const& name() const noexcept override { return name_; }
  [[nodiscard]] std::span<SourceTensor const> tensors() const noexcept override { return tensors_; }
  [[nodiscard]] Json const& attributes() const noexcept override { return attributes_; }
  [[nodiscard]] std::uint64_t bytes_on_disk() const noexcept override { return 0; }
  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  std::string name_;
  std::vector<SourceTensor> tensors_{};
  std::vector<Tensor> data_{};  ///< views
  Json attributes_ = Json::object();
};

}  // namespace crossrank::checkpoint
