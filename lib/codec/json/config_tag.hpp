#pragma once
#include <optional>
#include <string_view>

#include <crossrank/json.hpp>

namespace crossrank::codec {

/// Number of `$` before "float" or "binary" in a key that stands alone in its object and so could be taken for a tag
/// of the encoding; 0 for any other key.
[[nodiscard]] std::size_t tag_depth(std::string_view key) noexcept;

/// Text of a double that JSON has no number for: "inf", "-inf", "nan", else "0x" and the 16 digits of its bits.
[[nodiscard]] std::string special_float_text(double value);
/// The inverse; nothing for any other text.
[[nodiscard]] std::optional<double> parse_special_float(std::string_view text) noexcept;

/// RFC 4648 base64 with padding.
[[nodiscard]] std::string to_base64(Json::binary_t const& bytes);
/// The inverse, strict: nothing for other characters, wrong padding or stray bits.
[[nodiscard]] std::optional<std::vector<std::uint8_t>> from_base64(std::string_view text);

}  // namespace crossrank::codec
