#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace crossrank::codec::zip {

inline constexpr std::uint32_t local_magic = 0x04034b50;
inline constexpr std::uint32_t descriptor_magic = 0x08074b50;
inline constexpr std::uint32_t central_magic = 0x02014b50;
inline constexpr std::uint32_t end_magic = 0x06054b50;
inline constexpr std::uint32_t end64_magic = 0x06064b50;
inline constexpr std::uint32_t locator_magic = 0x07064b50;

inline constexpr std::size_t local_bytes = 30;
inline constexpr std::size_t central_bytes = 46;
inline constexpr std::size_t end_bytes = 22;
inline constexpr std::size_t end64_bytes = 56;
inline constexpr std::size_t locator_bytes = 20;
inline constexpr std::size_t max_comment_bytes = 0xffff;

/// Marks a value that is in the ZIP64 part.
inline constexpr std::uint32_t in_zip64_32 = 0xffffffff;
inline constexpr std::uint16_t in_zip64_16 = 0xffff;
inline constexpr std::uint16_t zip64_extra_id = 1;

inline constexpr std::uint16_t flag_encrypted = 1;
inline constexpr std::uint16_t flag_descriptor = 8;
inline constexpr std::uint16_t flag_utf8 = 0x800;

/// Returns the little-endian number at `at`.
template <class Number>
[[nodiscard]] Number load(std::byte const* at) noexcept {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  Number value = 0;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

}  // namespace crossrank::codec::zip
