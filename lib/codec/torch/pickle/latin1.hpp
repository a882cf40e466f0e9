#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace crossrank::codec {

/// UTF-8 text whose characters are all below 256, as one byte for each; nothing for any other text.
[[nodiscard]] std::optional<std::string> to_latin1(std::string_view utf8);
/// The inverse.
[[nodiscard]] std::string from_latin1(std::string_view bytes);

}  // namespace crossrank::codec
