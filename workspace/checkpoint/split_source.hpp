#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "workspace/checkpoint/planned_tensor.hpp"
#include "workspace/checkpoint/shard_source.hpp"
#include "workspace/checkpoint/split_rule.hpp"

namespace crossrank::checkpoint {

/// How a whole tensor, one of the source's own descriptions, is cut.
using CutFor = std::function<SplitRule(SourceTensor const& whole)>;

/// What one tensor-parallel rank gets of a whole model, read through its source: the inverse of a merge.
class SplitSource final : public DescribedSource {
 public:
  /// `FormatError` where a cut would fall inside a byte; what `cut_for` throws.
  SplitSource(std::shared_ptr<ShardSource const> whole, std::size_t rank, CutFor const& cut_for);

  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;
  /// Which bytes of the whole tensor this rank gets, a line for each run of them.
  [[nodiscard]] std::string explain(std::size_t tensor) const;

 private:
  /// Where a shard's tensor comes from.
  struct Cut {
    std::vector<Piece> pieces{};
    int set_element = -1;  ///< an unpacked shape: this element is `value`
    std::int64_t value = 0;
  };
  [[nodiscard]] std::vector<Piece> cut_pieces(std::uint32_t tensor, SplitRule const& rule, std::size_t rank) const;

  std::shared_ptr<ShardSource const> whole_;
  std::vector<Cut> cuts_{};  ///< of each tensor
};

}  // namespace crossrank::checkpoint
