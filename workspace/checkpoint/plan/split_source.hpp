#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "workspace/checkpoint/plan/merged_tensor.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"
#include "workspace/checkpoint/rules/split_rule.hpp"

namespace crossrank::checkpoint {

/// Returns how a whole tensor, one of the source's own descriptions, is split.
using SplitRuleFor = std::function<SplitRule(SourceTensor const& whole)>;

/// The shard of one tensor-parallel rank as a source that reads from the whole model: the inverse of a merge.
class SplitSource final : public DescribedSource {
 public:
  /// `FormatError` when a shard boundary falls inside a byte; errors of `split_rule_for`.
  SplitSource(std::shared_ptr<ShardSource const> whole, std::size_t rank, SplitRuleFor const& split_rule_for);

  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;
  [[nodiscard]] bool is_in_memory() const noexcept override { return whole_->is_in_memory(); }
  [[nodiscard]] std::vector<std::string> files_of(std::size_t tensor) const override;
  /// Returns where the bytes of a tensor come from; the inputs are tensors of the whole model.
  [[nodiscard]] std::span<InputRuns const> pieces(std::size_t tensor) const { return shard_tensors_.at(tensor).pieces; }
  /// Returns the bytes of the whole tensor that this rank gets, in one line for each `InputRuns`.
  [[nodiscard]] std::string explain(std::size_t tensor) const;

 private:
  /// The sources of one tensor of the shard.
  struct ShardTensor {
    std::vector<InputRuns> pieces{};
    int set_element = -1;  ///< an original shape: this element is `value`
    std::int64_t value = 0;
  };
  [[nodiscard]] std::vector<InputRuns> runs_for_rank(std::uint32_t tensor, SplitRule const& rule,
                                                     std::size_t rank) const;

  std::shared_ptr<ShardSource const> whole_;
  std::vector<ShardTensor> shard_tensors_{};  ///< one per tensor
};

}  // namespace crossrank::checkpoint
