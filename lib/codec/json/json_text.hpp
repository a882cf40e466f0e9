#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace crossrank::codec {

/// Offset of the first byte that is no well-formed UTF-8, or `npos`.
[[nodiscard]] std::size_t find_bad_utf8(std::string_view text) noexcept;

/// Appends `text`, well-formed UTF-8, as a JSON string with its quotes.
void append_json_string(std::string& out, std::string_view text);

/// `text` with whatever is not printable ASCII as '?', for messages.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace crossrank::codec
