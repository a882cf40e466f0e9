#include "lib/codec/checksum/crc32.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace crossrank::codec {
namespace {

// The polynomial of zip, with the lowest power in the highest bit.
constexpr std::uint32_t polynomial = 0xedb88320U;

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

/// Table k holds the effect of a byte on the remainder when k more bytes follow.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1U) ^ ((value & 1U) != 0 ? polynomial : 0U);
    tables[0][byte] = value;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      auto const before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8U) ^ tables[0][before & 255U];
    }
  }
  return tables;
}

constexpr Tables tables = make_tables();

/// Advances `state`, the inverted remainder, by `count` bytes.
std::uint32_t advance(std::uint32_t state, std::byte const* at, std::size_t count) noexcept {
  for (; count >= 8; count -= 8, at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, 8);
    word ^= state;
    state = 0;
    for (std::size_t k = 0; k < 8; ++k) state ^= tables[7 - k][(word >> (8 * k)) & 255U];
  }
  for (; count > 0; --count, ++at)
    state = (state >> 8U) ^ tables[0][(state ^ std::to_integer<std::uint32_t>(*at)) & 255U];
  return state;
}

/// Returns the product of two polynomials below 32 bits, with the lowest power in the highest bit.
std::uint32_t product(std::uint32_t left, std::uint32_t right) noexcept {
  std::uint32_t sum = 0;
  for (std::uint32_t power = 0x80000000U; power != 0; power >>= 1U) {
    if ((left & power) != 0) sum ^= right;
    right = (right >> 1U) ^ ((right & 1U) != 0 ? polynomial : 0U);
  }
  return sum;
}

#if defined(__x86_64__)

/// Returns x^n modulo the polynomial as a factor of the folding step. It is bit-reversed, and shifted by one because
/// the product of two reversed numbers is one bit too low.
constexpr std::uint64_t fold_factor(unsigned n) {
  std::uint32_t value = 0x80000000U;
  for (unsigned i = 0; i < n; ++i) value = (value >> 1U) ^ ((value & 1U) != 0 ? polynomial : 0U);
  return std::uint64_t{value} << 1U;
}

__attribute__((target("pclmul,sse4.1"))) inline __m128i fold(__m128i value, __m128i factors, __m128i next) noexcept {
  auto const low = _mm_clmulepi64_si128(value, factors, 0x00);
  auto const high = _mm_clmulepi64_si128(value, factors, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

inline __m128i load(std::byte const* at) noexcept { return _mm_loadu_si128(reinterpret_cast<__m128i const*>(at)); }

/// Returns factors that carry 128 bits over a distance of `bits`. The low half is 64 bits further away than the high
/// one.
__attribute__((target("pclmul,sse4.1"))) inline __m128i factors_for(std::uint64_t low, std::uint64_t high) noexcept {
  return _mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low));
}

/// Reduces all whole blocks of 16 bytes, at least four, to 16 bytes with the same remainder, then uses the table.
__attribute__((target("pclmul,sse4.1"))) std::uint32_t advance_folding(std::uint32_t state, std::byte const* at,
                                                                       std::size_t count) noexcept {
  constexpr auto by_512_low = fold_factor(512 + 32);
  constexpr auto by_512_high = fold_factor(512 - 32);
  constexpr auto by_128_low = fold_factor(128 + 32);
  constexpr auto by_128_high = fold_factor(128 - 32);
  __m128i lanes[4] = {load(at), load(at + 16), load(at + 32), load(at + 48)};
  lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128(static_cast<int>(state)));
  at += 64;
  count -= 64;
  auto const far = factors_for(by_512_low, by_512_high);
  for (; count >= 64; count -= 64, at += 64) {
    for (std::size_t i = 0; i < 4; ++i) lanes[i] = fold(lanes[i], far, load(at + 16 * i));
  }
  auto const near = factors_for(by_128_low, by_128_high);
  auto sum = lanes[0];
  for (std::size_t i = 1; i < 4; ++i) sum = fold(sum, near, lanes[i]);
  for (; count >= 16; count -= 16, at += 16) sum = fold(sum, near, load(at));
  std::array<std::byte, 16> rest{};
  std::memcpy(rest.data(), &sum, rest.size());
  return advance(advance(0, rest.data(), rest.size()), at, count);
}

bool can_fold() noexcept {
  static bool const can = __builtin_cpu_supports("pclmul") != 0 && __builtin_cpu_supports("sse4.1") != 0;
  return can;
}

#endif

}  // namespace

std::uint32_t crc32_combine(std::uint32_t front, std::uint32_t back, std::uint64_t bytes) noexcept {
  // Each following byte multiplies the preceding polynomial by x^8. The inversions at both ends cancel out.
  std::uint32_t shift = 0x00800000U;
  for (; bytes > 0; bytes >>= 1U) {
    if ((bytes & 1U) != 0) front = product(front, shift);
    shift = product(shift, shift);
  }
  return front ^ back;
}

std::uint32_t crc32_by_table(std::uint32_t so_far, std::span<std::byte const> bytes) noexcept {
  return ~advance(~so_far, bytes.data(), bytes.size());
}

std::uint32_t crc32(std::uint32_t so_far, std::span<std::byte const> bytes) noexcept {
#if defined(__x86_64__)
  if (bytes.size() >= 64 && can_fold()) return ~advance_folding(~so_far, bytes.data(), bytes.size());
#endif
  return crc32_by_table(so_far, bytes);
}

}  // namespace crossrank::codec
