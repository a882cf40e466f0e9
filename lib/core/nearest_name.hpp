#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace crossrank {

/// Returns the candidate that `wanted` most likely means, or nothing. The edit distance is at most 2, or a third of the
/// length of `wanted` if that is more. Ignores case.
[[nodiscard]] std::optional<std::string> nearest_name(std::string_view wanted,
                                                      std::vector<std::string> const& candidates);

}  // namespace crossrank
