#pragma once
#include <cstddef>
#include <string_view>

namespace crossrank {

/// Length of the well-formed UTF-8 sequence at the front of `text`, 0 when there is none.
[[nodiscard]] std::size_t utf8_length(std::string_view text) noexcept;

}  // namespace crossrank
