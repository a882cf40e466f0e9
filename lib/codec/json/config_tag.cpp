#include "lib/codec/json/config_tag.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "lib/codec/checksum/checksum.hpp"

namespace crossrank::codec {
namespace {

constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<std::uint8_t, 256> inverse_alphabet() {
  std::array<std::uint8_t, 256> inverse{};
  for (auto& value : inverse) value = 0xff;
  for (std::size_t i = 0; i < alphabet.size(); ++i)
    inverse[static_cast<unsigned char>(alphabet[i])] = static_cast<std::uint8_t>(i);
  return inverse;
}

constexpr double plain_nan = std::numeric_limits<double>::quiet_NaN();

}  // namespace

std::size_t tag_depth(std::string_view key) noexcept {
  auto const dollars = key.find_first_not_of('$');
  if (dollars == std::string_view::npos) return 0;
  auto const name = key.substr(dollars);
  return name == "float" || name == "binary" ? dollars : 0;
}

std::string special_float_text(double value) {
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  auto const bits = std::bit_cast<std::uint64_t>(value);
  return bits == std::bit_cast<std::uint64_t>(plain_nan) ? "nan" : "0x" + to_hex(bits);
}

std::optional<double> parse_special_float(std::string_view text) noexcept {
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  if (text == "nan") return plain_nan;
  if (!text.starts_with("0x")) return std::nullopt;
  auto const bits = from_hex(text.substr(2));
  if (!bits) return std::nullopt;
  auto const value = std::bit_cast<double>(*bits);
  if (!std::isnan(value)) return std::nullopt;
  return value;
}

std::string to_base64(Json::binary_t const& bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    auto const left = bytes.size() - at;
    std::uint32_t const group = (std::uint32_t{bytes[at]} << 16) | (left > 1 ? std::uint32_t{bytes[at + 1]} << 8 : 0U) |
                                (left > 2 ? std::uint32_t{bytes[at + 2]} : 0U);
    out += alphabet[group >> 18];
    out += alphabet[(group >> 12) & 63];
    out += left > 1 ? alphabet[(group >> 6) & 63] : '=';
    out += left > 2 ? alphabet[group & 63] : '=';
  }
  return out;
}

std::optional<std::vector<std::uint8_t>> from_base64(std::string_view text) {
  static constexpr auto inverse = inverse_alphabet();
  if (text.size() % 4 != 0) return std::nullopt;
  std::size_t const padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  std::vector<std::uint8_t> out;
  out.reserve(text.size() / 4 * 3);
  for (std::size_t at = 0; at < text.size(); at += 4) {
    std::size_t const digits = at + 4 == text.size() ? 4 - padding : 4;
    std::uint32_t group = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      auto const value = i < digits ? inverse[static_cast<unsigned char>(text[at + i])] : std::uint8_t{0};
      if (value == 0xff) return std::nullopt;
      group = (group << 6) | value;
    }
    std::uint32_t const unused = digits == 2 ? 0xffff : digits == 3 ? 0xff : 0;
    if ((group & unused) != 0) return std::nullopt;
    for (std::size_t i = 0; i + 1 < digits; ++i) out.push_back(static_cast<std::uint8_t>(group >> (16 - 8 * i)));
  }
  return out;
}

}  // namespace crossrank::codec
