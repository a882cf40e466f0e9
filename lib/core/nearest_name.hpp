#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace crossrank {

/// Returns the candidate that a writer of `wanted` most likely meant: at most two letters away, or a third of the
/// length of `wanted`. Ignores case.
[[nodiscard]] std::optional<std::string> nearest_name(std::string_view wanted,
                                                      std::vector<std::string> const& candidates);

}  // namespace crossrank
