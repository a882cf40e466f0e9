#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// A hint: one line of a rule file for the layer, once for each way it might be cut.
[[nodiscard]] std::string propose_rules(std::string_view module, std::vector<std::string> const& cuts);

/// The error for a tensor that no rule covers: what the shards look like, and the rules that would fit them, the
/// likeliest first. Never chooses one. `uncovered` are the patterns of all layers that no rule covers.
[[noreturn]] void refuse_uncovered(std::string_view name, std::span<SourceTensor const* const> shards,
                                   std::vector<std::string> const& uncovered);

}  // namespace crossrank::checkpoint
