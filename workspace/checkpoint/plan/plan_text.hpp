#pragma once
#include <string>
#include <string_view>

#include <crossrank/json.hpp>

#include "workspace/checkpoint/plan/merge_layout.hpp"

namespace crossrank::checkpoint {

/// Returns everything that decides about the result as JSON. Paths appear by their last element, because ranks may
/// mount them in different places.
[[nodiscard]] Json describe_layout(MergeLayout const& layout, Json const& rules);

/// Returns a checksum of all that `describe_layout` returns, equal on ranks that would write the same result.
[[nodiscard]] std::uint64_t hash_of(MergeLayout const& layout, Json const& rules);

/// Returns where the bytes of one tensor of the result come from, in lines of text. `UsageError` when there is no such
/// tensor.
[[nodiscard]] std::string explain_tensor(MergeLayout const& layout, std::string_view name);

}  // namespace crossrank::checkpoint
