#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace crossrank {

/// Returns the first `max` items of a list as text: "a, b and 3 more".
[[nodiscard]] std::string list_text(std::span<std::string const> items, std::size_t max = 8);
[[nodiscard]] std::string list_text(std::span<std::int64_t const> numbers, std::size_t max = 8);

}  // namespace crossrank
