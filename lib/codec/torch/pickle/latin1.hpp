#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace crossrank::codec {

/// Converts UTF-8 text with characters below 256 to one byte each. Returns nothing for any other text.
[[nodiscard]] std::optional<std::string> to_latin1(std::string_view utf8);
/// Converts Latin-1 bytes to UTF-8.
[[nodiscard]] std::string from_latin1(std::string_view bytes);

}  // namespace crossrank::codec
