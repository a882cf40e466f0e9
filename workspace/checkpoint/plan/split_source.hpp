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

/// How a whole tensor, one of the source's own descriptions, is cut.
using SplitRuleFor = std::function<SplitRule(SourceTensor const& whole)>;

/// What one tensor-parallel rank gets of a whole model, read through its source: the inverse of a merge.
class SplitSource final : public DescribedSource {
 public:
  /// `FormatError` where a cut would fall inside a byte; what `split_rule_for` throws.
  SplitSource(std::shared_ptr<ShardSource const> whole, std::size_t rank, SplitRuleFor const& split_rule_for);

  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;
  /// Which bytes of the whole tensor this rank gets, a line for each run of them.
  [[nodiscard]] std::string explain(std::size_t tensor) const;

 private:
  /// Where a shard's tensor comes from.
  struct ShardTensor {
    std::vector<InputRuns> pieces{};
    int set_element = -1;  ///< an original shape: this element is `value`
    std::int64_t value = 0;
  };
  [[nodiscard]] std::vector<InputRuns> runs_for_rank(std::uint32_t tensor, SplitRule const& rule,
                                                     std::size_t rank) const;

  std::shared_ptr<ShardSource const> whole_;
  std::vector<ShardTensor> shard_tensors_{};  ///< of each tensor
};

}  // namespace crossrank::checkpoint
