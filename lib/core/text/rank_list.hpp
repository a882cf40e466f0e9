#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace crossrank {

/// Formats ascending ranks as ranges, for error texts: "0-3, 7".
[[nodiscard]] inline std::string format_ranks(std::vector<int> const& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    auto last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[i]);
    if (last > i) text += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

/// Names ascending ranks in error texts: "rank 3" or "ranks 0-3, 7".
[[nodiscard]] inline std::string name_ranks(std::vector<int> const& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + format_ranks(ranks);
}

}  // namespace crossrank
