#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace crossrank::codec {

/// XXH3, 64 bits, seed 0, of `bytes`.
[[nodiscard]] std::uint64_t checksum(std::span<std::byte const> bytes) noexcept;

/// The same over bytes that come in parts.
class StreamingChecksum {
 public:
  StreamingChecksum();
  /// Forgets all bytes so far.
  void restart() noexcept;
  void update(std::span<std::byte const> bytes) noexcept;
  /// Of all bytes so far; more may follow.
  [[nodiscard]] std::uint64_t digest() const noexcept;

 private:
  struct State;
  struct Free {
    void operator()(State* state) const noexcept;
  };
  std::unique_ptr<State, Free> state_;
};

/// Digits of a checksum in text form.
inline constexpr std::size_t checksum_digits = 16;

/// 16 lower-case hexadecimal digits, most significant first.
[[nodiscard]] std::string to_hex(std::uint64_t digest);
/// The inverse; nothing for any other text.
[[nodiscard]] std::optional<std::uint64_t> from_hex(std::string_view digits) noexcept;

}  // namespace crossrank::codec
