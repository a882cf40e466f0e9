#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace crossrank::checkpoint {

/// "a, b and 3 more": the first `most` of a list that may be long.
[[nodiscard]] std::string list_text(std::span<std::string const> items, std::size_t most = 8);
[[nodiscard]] std::string list_text(std::span<std::int64_t const> numbers, std::size_t most = 8);

}  // namespace crossrank::checkpoint
