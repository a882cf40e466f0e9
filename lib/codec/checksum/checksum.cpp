#include "lib/codec/checksum/checksum.hpp"

#include <charconv>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lib/codec/checksum/checksum_avx2.hpp"

namespace crossrank::codec {
namespace {

// For fewer bytes the dispatch costs more than it gains.
constexpr std::size_t wide_from = 1024;

bool has_wide() noexcept {
#if defined(__x86_64__)
  static bool const has = __builtin_cpu_supports("avx2") != 0;
  return has;
#else
  return false;
#endif
}

}  // namespace

struct StreamingChecksum::State {
  XXH3_state_t xxh3;
};

std::uint64_t checksum(std::span<std::byte const> bytes) noexcept {
  if (bytes.size() >= wide_from && has_wide()) return checksum_avx2(bytes.data(), bytes.size());
  return XXH3_64bits(bytes.data(), bytes.size());
}

StreamingChecksum::StreamingChecksum() : state_(std::make_unique<State>().release()) { restart(); }

void StreamingChecksum::restart() noexcept { XXH3_64bits_reset(&state_->xxh3); }

void StreamingChecksum::Free::operator()(State* state) const noexcept { std::default_delete<State>{}(state); }

void StreamingChecksum::update(std::span<std::byte const> bytes) noexcept {
  if (bytes.size() >= wide_from && has_wide()) return update_avx2(&state_->xxh3, bytes.data(), bytes.size());
  XXH3_64bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

std::uint64_t StreamingChecksum::digest() const noexcept { return XXH3_64bits_digest(&state_->xxh3); }

std::string to_hex(std::uint64_t digest) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text(checksum_digits, '0');
  for (auto at = text.rbegin(); at != text.rend(); ++at, digest >>= 4) *at = digits[digest & 15];
  return text;
}

std::optional<std::uint64_t> from_hex(std::string_view digits) noexcept {
  if (digits.size() != checksum_digits || digits.find_first_not_of("0123456789abcdef") != std::string_view::npos)
    return std::nullopt;
  std::uint64_t digest = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), digest, 16);
  return digest;
}

}  // namespace crossrank::codec
