#pragma once
#include <optional>
#include <string_view>

#include <crossrank/json.hpp>

namespace crossrank::codec {

/// Returns the number of `$` before "float" or "binary" in `key`; 0 for any other key. An object with such a key as its
/// only key looks like a tag of the encoding.
[[nodiscard]] std::size_t tag_depth(std::string_view key) noexcept;

/// Returns the text of a double that is not a JSON number: "inf", "-inf", "nan", else "0x" and the 16 digits of its
/// bits.
[[nodiscard]] std::string special_float_text(double value);
/// Parses the result of `special_float_text`. Returns nothing for any other text.
[[nodiscard]] std::optional<double> parse_special_float(std::string_view text) noexcept;

/// Encodes bytes as base64 (RFC 4648) with padding.
[[nodiscard]] std::string to_base64(Json::binary_t const& bytes);
/// Decodes base64. Returns nothing for other characters, wrong padding or stray bits.
[[nodiscard]] std::optional<std::vector<std::uint8_t>> from_base64(std::string_view text);

}  // namespace crossrank::codec
