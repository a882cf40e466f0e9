#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace crossrank::codec {

/// CRC-32 as zip archives carry it, of the bytes behind `so_far` and then `bytes`; `so_far` is 0 at the start.
///
/// Folds 64 bytes at a time by carry-less multiplication where the processor has it, many times as fast as a table.
[[nodiscard]] std::uint32_t crc32(std::uint32_t so_far, std::span<std::byte const> bytes) noexcept;

/// The same by tables alone: what the other must agree with.
[[nodiscard]] std::uint32_t crc32_by_table(std::uint32_t so_far, std::span<std::byte const> bytes) noexcept;

}  // namespace crossrank::codec
