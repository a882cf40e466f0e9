#pragma once
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace crossrank::test {

/// Returns the first 32 bits of the fractional parts of the cube (or square) roots of the first primes. These are the
/// constants of SHA-256.
template <std::size_t Count>
std::array<std::uint32_t, Count> root_digits(bool cube) {
  std::array<std::uint32_t, Count> out{};
  std::size_t found = 0;
  for (unsigned n = 2; found < Count; ++n) {
    bool prime = true;
    for (unsigned d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
    if (!prime) continue;
    auto const root = cube ? std::cbrt(static_cast<long double>(n)) : std::sqrt(static_cast<long double>(n));
    out[found++] = static_cast<std::uint32_t>((root - std::floor(root)) * 4294967296.0L);
  }
  return out;
}

/// Returns the SHA-256 in hexadecimal, to compare with digests that other tools wrote.
inline std::string sha256(std::span<std::byte const> bytes) {
  static auto const k = root_digits<64>(true);
  auto state = root_digits<8>(false);
  std::vector<std::uint8_t> text;
  for (auto const b : bytes) text.push_back(std::to_integer<std::uint8_t>(b));
  text.push_back(0x80);
  while (text.size() % 64 != 56) text.push_back(0);
  for (int shift = 56; shift >= 0; shift -= 8) text.push_back(static_cast<std::uint8_t>((bytes.size() * 8) >> shift));
  for (std::size_t at = 0; at < text.size(); at += 64) {
    std::array<std::uint32_t, 64> w{};
    for (std::size_t i = 0; i < 16; ++i) {
      for (std::size_t j = 0; j < 4; ++j) w[i] = (w[i] << 8U) | text[at + 4 * i + j];
    }
    for (std::size_t i = 16; i < 64; ++i) {
      auto const a = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3U);
      auto const b = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10U);
      w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    auto s = state;
    for (std::size_t i = 0; i < 64; ++i) {
      auto const e = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
      auto const first = s[7] + e + ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
      auto const a = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
      auto const second = a + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      s = {first + second, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
    }
    for (std::size_t i = 0; i < 8; ++i) state[i] += s[i];
  }
  std::string hex;
  for (auto const word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) hex.push_back("0123456789abcdef"[(word >> shift) & 15U]);
  }
  return hex;
}

}  // namespace crossrank::test
