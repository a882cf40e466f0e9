#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace crossrank {

/// Returns the candidate that `wanted` most likely means, or nothing. The edit distance is at most 2, or a third of the
/// length of `wanted` if that is more, and at most half of the longer name. Ignores case.
[[nodiscard]] std::optional<std::string> nearest_name(std::string_view wanted,
                                                      std::vector<std::string> const& candidates);

/// Returns "did you mean NAME?" with the nearest name, for the hint of an error; empty when none is near. Compares
/// nothing when there are more than 1,000 names, so that the error stays cheap.
[[nodiscard]] std::string did_you_mean(std::string_view wanted, std::vector<std::string> const& candidates);

}  // namespace crossrank
