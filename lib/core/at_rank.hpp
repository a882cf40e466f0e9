#pragma once
#include <cstddef>

namespace crossrank {

/// Returns the element of a vector or span that has one element per rank or member. `rank` must be valid.
template <class PerRank>
[[nodiscard]] constexpr decltype(auto) at_rank(PerRank&& values, int rank) noexcept {
  return values[static_cast<std::size_t>(rank)];
}

}  // namespace crossrank
