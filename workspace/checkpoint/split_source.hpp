#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "workspace/checkpoint/merge_rule.hpp"
#include "workspace/checkpoint/planned_tensor.hpp"
#include "workspace/checkpoint/shard_source.hpp"

namespace crossrank::checkpoint {

/// How ranks would merge the shards that a whole tensor is to be cut into.
using CutFor = std::function<MergeRule(SourceTensor const& whole)>;

/// What one tensor-parallel rank of `tp` gets of a whole model, read through its source: the inverse of a merge.
class SplitSource final : public ShardSource {
 public:
  /// `FormatError` where a tensor cannot be cut into that many equal pieces.
  SplitSource(std::shared_ptr<ShardSource const> whole, int rank, int tp, CutFor const& cut_for);

  [[nodiscard]] std::string const& name() const noexcept override { return name_; }
  [[nodiscard]] std::span<SourceTensor const> tensors() const noexcept override { return tensors_; }
  [[nodiscard]] Json const& attributes() const noexcept override { return attributes_; }
  [[nodiscard]] std::uint64_t bytes_on_disk() const noexcept override { return 0; }
  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  void add_cut(std::size_t tensor, MergeRule const& rule, int rank, int tp);

  std::shared_ptr<ShardSource const> whole_;
  std::string name_;
  std::vector<SourceTensor> tensors_{};
  std::vector<std::vector<Piece>> pieces_{};  ///< of each tensor
  Json attributes_ = Json::object();
};

}  // namespace crossrank::checkpoint
