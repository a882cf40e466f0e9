#pragma once
#include <numeric>
#include <vector>

#include "lib/core/as_size.hpp"

namespace crossrank {

/// Returns the element of a vector or span that has one element per rank or member. `rank` must be valid.
template <class PerRank>
[[nodiscard]] constexpr decltype(auto) at_rank(PerRank&& values, int rank) noexcept {
  return values[as_size(rank)];
}

/// Returns a vector with one element for each of `ranks` ranks.
template <class T>
[[nodiscard]] std::vector<T> per_rank(int ranks) {
  return std::vector<T>(as_size(ranks));
}
template <class T>
[[nodiscard]] std::vector<T> per_rank(int ranks, T const& value) {
  return std::vector<T>(as_size(ranks), value);
}

/// Returns 0, 1, ..., `ranks` - 1.
[[nodiscard]] inline std::vector<int> all_ranks(int ranks) {
  auto all = per_rank<int>(ranks);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace crossrank
