#pragma once
#include <cstddef>
#include <string_view>

namespace crossrank {

/// Returns the length of the well-formed UTF-8 sequence at the start of `text`, or 0 when there is none.
[[nodiscard]] std::size_t utf8_length(std::string_view text) noexcept;

}  // namespace crossrank
