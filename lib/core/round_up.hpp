#pragma once
#include <cstddef>
#include <type_traits>

namespace crossrank {

/// Returns the smallest multiple of `step` that is at least `value`. `value + step` must not overflow.
template <class Size>
requires std::is_unsigned_v<Size>
[[nodiscard]] constexpr Size round_up(Size value, std::type_identity_t<Size> step) noexcept {
  return (value + step - 1) / step * step;
}

}  // namespace crossrank
