#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// Returns a hint: one line of a rule file for each way in which the layer may be sharded.
[[nodiscard]] std::string propose_rules(std::string_view module, std::vector<std::string> const& shardings);

/// Returns the error of a fused layer whose `parts` have unknown widths, without operation and section. The hint has a
/// line of a rule file.
[[nodiscard]] ErrorInfo unknown_parts(std::string_view module, std::size_t parts, std::string got);

/// Throws a `FormatError` for a tensor that no rule covers. It describes the shards and proposes rules that fit them,
/// the likeliest first. `uncovered` are the patterns of all layers that no rule covers.
[[noreturn]] void refuse_uncovered(std::string_view name, std::span<SourceTensor const* const> shards,
                                   std::vector<std::string> const& uncovered);

}  // namespace crossrank::checkpoint
