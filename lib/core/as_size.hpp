#pragma once
#include <cassert>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace crossrank {

// A size in a file or message, a std::uint64_t, is a size in memory without a conversion.
static_assert(sizeof(std::size_t) == sizeof(std::uint64_t), "crossrank needs a 64-bit system");

/// Returns a count or an index of a signed type as a size. It must not be negative; debug builds check that.
template <std::signed_integral T>
[[nodiscard]] constexpr std::size_t as_size(T value) noexcept {
  assert(value >= 0);
  return static_cast<std::size_t>(value);
}

/// Returns the number of an enumerator, for a table with one element for each.
template <class Enum>
requires std::is_enum_v<Enum>
[[nodiscard]] constexpr std::size_t as_index(Enum value) noexcept { return static_cast<std::size_t>(value); }

/// Returns the element of a shape, or of a list with one element per dimension. `axis` must be valid.
template <class PerAxis>
[[nodiscard]] constexpr decltype(auto) at_axis(PerAxis&& lengths, int axis) noexcept {
  return lengths[as_size(axis)];
}

}  // namespace crossrank
