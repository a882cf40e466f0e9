#pragma once
#include <cstddef>
#include <numeric>
#include <span>

namespace crossrank {

/// Returns the sum of some sizes.
[[nodiscard]] constexpr std::size_t sum(std::span<std::size_t const> sizes) noexcept {
  return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
}

}  // namespace crossrank
