#include "lib/codec/torch/pickle/latin1.hpp"

#include <cstddef>

namespace crossrank::codec {

std::optional<std::string> to_latin1(std::string_view utf8) {
  std::string bytes;
  bytes.reserve(utf8.size());
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    auto const first = static_cast<unsigned char>(utf8[i]);
    if (first < 0x80) {
      bytes.push_back(utf8[i]);
      continue;
    }
    // In UTF-8, characters 128 to 255 take two bytes, and the first is one of these.
    if ((first != 0xc2 && first != 0xc3) || i + 1 == utf8.size()) return std::nullopt;
    auto const second = static_cast<unsigned char>(utf8[++i]);
    if ((second & 0xc0U) != 0x80) return std::nullopt;
    bytes.push_back(static_cast<char>(((first & 3U) << 6U) | (second & 0x3fU)));
  }
  return bytes;
}

std::string from_latin1(std::string_view bytes) {
  std::string utf8;
  utf8.reserve(bytes.size());
  for (char const c : bytes) {
    auto const byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      utf8.push_back(c);
    } else {
      utf8.push_back(static_cast<char>(0xc0U | (byte >> 6U)));
      utf8.push_back(static_cast<char>(0x80U | (byte & 0x3fU)));
    }
  }
  return utf8;
}

}  // namespace crossrank::codec
