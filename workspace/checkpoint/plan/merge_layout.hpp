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

/// All that a merge does: inputs, and for each output where its bytes come from.
struct MergeLayout {
  ShardSet set{};
  std::vector<MergedTensor> tensors{};  ///< in natural order of their names
  std::vector<DroppedTensor> dropped{};
  std::uint64_t bytes = 0;  ///< of all tensors
};

/// Returns the names of all tensors of the result, in their order.
[[nodiscard]] std::vector<std::string> names_of(MergeLayout const& layout);

/// What to do with one tensor, as `RuleSet::rule_for`.
using RuleFor = std::function<MergeRule(std::string_view name, std::span<SourceTensor const* const> shards)>;

/// Told of a tensor that cannot be planned; it is left out then.
using OnRefused = std::function<void(std::string_view name, Error const& error)>;

/// Applies the rules to all tensors of a set: tensor ranks are merged, stages and experts gathered under the names that
/// the rules give. Without rules all is taken as it is: a single source.
/// `FormatError` when shards do not fit together; what the rules throw.
/// With `on_refused` these are told and the rest is planned.
[[nodiscard]] MergeLayout lay_out_merge(ShardSet set, RuleFor const& rule_for, OnRefused const& on_refused = {});

}  // namespace crossrank::checkpoint
