#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/source/shard_set.hpp"
#include "workspace/checkpoint/plan/merged_tensor.hpp"

namespace crossrank::checkpoint {

/// A tensor that is left out on purpose.
struct DroppedTensor {
  std::string name{};
  std::string reason{};
};

/// The layout of a merge: its inputs, and for each tensor of the result the sources of its bytes.
struct MergeLayout {
  ShardSet set{};
  std::vector<MergedTensor> tensors{};  ///< in natural order of their names
  std::vector<DroppedTensor> dropped{};
  std::uint64_t bytes = 0;  ///< sum over all tensors
};

/// Returns the names of all tensors of the result, in their order.
[[nodiscard]] std::vector<std::string> names_of(MergeLayout const& layout);

/// Returns the tensor of the result with this name. Throws `UsageError` with the nearest name if no tensor has it.
[[nodiscard]] MergedTensor const& find_tensor(MergeLayout const& layout, std::string_view name);

/// A range of a combined tensor, and the bytes of its inputs that it needs.
struct CombinedRange {
  std::span<TensorAt const> inputs{};
  std::uint64_t begin = 0;  ///< in each input
  std::uint64_t end = 0;
  std::uint64_t at = 0;  ///< place of `begin` in the result
};

/// Returns the ranges of a tensor whose rule combines values that cover bytes `[offset, offset + size)`. They consist
/// of whole elements. A sum of one element compares all others, so that it needs its inputs as a whole.
[[nodiscard]] std::vector<CombinedRange> combined_ranges(MergeLayout const& layout, MergedTensor const& tensor,
                                                         std::uint64_t offset, std::uint64_t size);

/// Returns the rule for the shards of one tensor, like `RuleSet::rule_for`.
using RuleFor = std::function<MergeRule(ShardGroup const& group)>;

/// Receives the error of a tensor that cannot be planned and that the layout therefore lacks.
using OnRefused = std::function<void(std::string_view name, Error const& error)>;

/// Applies the rules to all tensors of a set. Tensor-parallel ranks are merged; the tensors of stages and expert ranks
/// are collected under the names that the rules give. Without rules the set has one source, whose tensors stay as they
/// are.
///
/// `FormatError` when shards do not fit together; errors of the rules. With `on_refused` these errors go to it, and the
/// layout has all other tensors.
[[nodiscard]] MergeLayout lay_out_merge(ShardSet set, RuleFor const& rule_for, OnRefused const& on_refused = {});

}  // namespace crossrank::checkpoint
