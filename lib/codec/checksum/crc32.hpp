#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace crossrank::codec {

/// CRC-32 as zip archives carry it, of the bytes behind `so_far` and then `bytes`; `so_far` is 0 at the start.
///
/// Folds 64 bytes at a time by carry-less multiplication where the processor has it, many times as fast as a table.
[[nodiscard]] std::uint32_t crc32(std::uint32_t so_far, std::span<std::byte const> bytes) noexcept;

/// Of bytes with the CRC `front` and then `bytes` more with the CRC `back`: both can be taken apart from each other.
[[nodiscard]] std::uint32_t crc32_combine(std::uint32_t front, std::uint32_t back, std::uint64_t bytes) noexcept;

/// `crc32` by tables alone: what it must agree with.
[[nodiscard]] std::uint32_t crc32_by_table(std::uint32_t so_far, std::span<std::byte const> bytes) noexcept;

}  // namespace crossrank::codec
