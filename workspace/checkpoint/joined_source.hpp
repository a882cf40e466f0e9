#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "workspace/checkpoint/shard_source.hpp"

namespace crossrank::checkpoint {

/// Several files that together are one part of a model.
class JoinedSource final : public ShardSource {
 public:
  /// `FormatError` for a tensor that comes in two of them.
  JoinedSource(std::string name, std::vector<std::shared_ptr<ShardSource const>> parts);

  [[nodiscard]] std::string const& name() const noexcept override { return name_; }
  [[nodiscard]] std::span<SourceTensor const> tensors() const noexcept override { return tensors_; }
  [[nodiscard]] Json const& attributes() const noexcept override { return attributes_; }
  [[nodiscard]] std::uint64_t bytes_on_disk() const noexcept override { return bytes_on_disk_; }
  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  std::string name_;
  std::vector<std::shared_ptr<ShardSource const>> parts_;
  std::vector<SourceTensor> tensors_{};
  std::vector<std::pair<std::size_t, std::size_t>> places_{};  ///< part, and number of the tensor there
  Json attributes_ = Json::object();
  std::uint64_t bytes_on_disk_ = 0;
};

}  // namespace crossrank::checkpoint
