#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace crossrank::codec {

/// Returns the 64-bit XXH3 checksum of `bytes`, with seed 0.
[[nodiscard]] std::uint64_t checksum(std::span<std::byte const> bytes) noexcept;

/// Computes the checksum of bytes that come in parts.
class StreamingChecksum {
 public:
  StreamingChecksum();
  /// Starts over, without bytes.
  void restart() noexcept;
  void update(std::span<std::byte const> bytes) noexcept;
  /// Returns the checksum of all bytes so far. More may follow.
  [[nodiscard]] std::uint64_t digest() const noexcept;

 private:
  struct State;
  struct Free {
    void operator()(State* state) const noexcept;
  };
  std::unique_ptr<State, Free> state_;
};

/// Number of digits of a checksum as text.
inline constexpr std::size_t checksum_digits = 16;

/// Returns 16 lower-case hexadecimal digits, most significant first.
[[nodiscard]] std::string to_hex(std::uint64_t digest);
/// Parses the result of `to_hex`. Returns nothing for any other text.
[[nodiscard]] std::optional<std::uint64_t> from_hex(std::string_view digits) noexcept;

}  // namespace crossrank::codec
