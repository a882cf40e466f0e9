#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace crossrank::codec {

/// Returns the offset of the first byte that is not well-formed UTF-8, or `npos`.
[[nodiscard]] std::size_t find_bad_utf8(std::string_view text) noexcept;

/// Appends `text`, well-formed UTF-8, as a JSON string with its quotes.
void append_json_string(std::string& out, std::string_view text);

/// Returns `text` for messages, with '?' in place of each byte that is not printable ASCII.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace crossrank::codec
