#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace crossrank::codec {

/// Returns the offset of the first byte that is not well-formed UTF-8, or `npos`.
[[nodiscard]] std::size_t find_bad_utf8(std::string_view text) noexcept;

/// How a JSON string writes control characters.
enum class ControlEscapes : std::uint8_t {
  numeric,      ///< always as `\u00xx`, which the format of state images requires
  short_forms,  ///< as `\b \t \n \f \r` where possible, like the reference implementation of safetensors
};

/// Appends `text`, well-formed UTF-8, as a JSON string with its quotes.
void append_json_string(std::string& out, std::string_view text, ControlEscapes escapes = ControlEscapes::numeric);

/// Returns `text` for messages, with '?' in place of each byte that is not printable ASCII.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace crossrank::codec
