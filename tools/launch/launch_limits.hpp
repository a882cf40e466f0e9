#pragma once
#include <string>

namespace crossrank::tools {

/// Returns which limit of this user forbids so many ranks, and how to see it; empty if they may start.
[[nodiscard]] std::string refused_by_limits(int ranks);

}  // namespace crossrank::tools
