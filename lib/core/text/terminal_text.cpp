#include "lib/core/text/terminal_text.hpp"

#include <cstddef>
#include <cstdint>

#include "lib/core/text/utf8.hpp"

namespace crossrank {
namespace {

std::uint32_t code_point(std::string_view sequence) {
  auto const byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(sequence[i])); };
  if (sequence.size() == 1) return byte(0);
  auto value = byte(0) & (0xffU >> (sequence.size() + 1));
  for (std::size_t i = 1; i < sequence.size(); ++i) value = value << 6U | (byte(i) & 0x3fU);
  return value;
}

/// Returns whether the character moves the cursor, is a command to the terminal, or changes the direction of text.
bool is_control(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x061c || code == 0x200e || code == 0x200f ||
         code == 0x2028 || code == 0x2029 || (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

void append_hex(std::string& out, std::uint32_t value, int digits) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += "0123456789abcdef"[value >> shift & 15U];
}

void append_escape(std::string& out, std::uint32_t code) {
  switch (code) {
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    default: break;
  }
  out += code < 0x100 ? "\\x" : "\\u";
  append_hex(out, code, code < 0x100 ? 2 : 4);
}

}  // namespace

std::string terminal_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    auto const length = utf8_length(text);
    auto const sequence = text.substr(0, length == 0 ? 1 : length);
    if (length == 0) {
      append_escape(out, static_cast<unsigned char>(text.front()));
    } else if (auto const code = code_point(sequence); is_control(code)) {
      append_escape(out, code);
    } else {
      out += sequence;
    }
    text.remove_prefix(sequence.size());
  }
  return out;
}

}  // namespace crossrank
