#include "lib/codec/json/json_text.hpp"

#include <cstdint>
#include <cstring>

#include "lib/core/text/utf8.hpp"

namespace crossrank::codec {
namespace {

/// Returns the letter of the short escape of a control character, or NUL if it has none.
char short_escape(char c) noexcept {
  switch (c) {
    case '\b': return 'b';
    case '\t': return 't';
    case '\n': return 'n';
    case '\f': return 'f';
    case '\r': return 'r';
    default: return '\0';
  }
}

}  // namespace

std::size_t find_bad_utf8(std::string_view text) noexcept {
  for (std::size_t at = 0; at < text.size();) {
    std::uint64_t eight = 0;
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080U) == 0) {  // eight ASCII characters
        at += sizeof eight;
        continue;
      }
    }
    auto const length = utf8_length(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

void append_json_string(std::string& out, std::string_view text, ControlEscapes escapes) {
  static constexpr char digits[] = "0123456789abcdef";
  out += '"';
  for (char const c : text) {
    auto const byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (char const letter = short_escape(c); letter != '\0' && escapes == ControlEscapes::short_forms) {
      out += '\\';
      out += letter;
    } else if (byte < 0x20) {
      out += "\\u00";
      out += digits[byte >> 4];
      out += digits[byte & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

std::string printable(std::string_view text) {
  std::string out(text);
  for (auto& c : out) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return out;
}

}  // namespace crossrank::codec
