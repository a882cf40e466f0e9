#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace crossrank::codec {

/// Returns the CRC-32 of zip archives after `bytes`. `so_far` is the CRC of the preceding bytes, 0 at the start.
///
/// Folds 64 bytes at a time by carry-less multiplication if the processor has it, many times as fast as a table.
[[nodiscard]] std::uint32_t crc32(std::uint32_t so_far, std::span<std::byte const> bytes) noexcept;

/// Returns the CRC of bytes with the CRC `front`, followed by `bytes` bytes with the CRC `back`. The two CRCs can be
/// computed independently.
[[nodiscard]] std::uint32_t crc32_combine(std::uint32_t front, std::uint32_t back, std::uint64_t bytes) noexcept;

/// Computes `crc32` only with tables, as a reference for tests.
[[nodiscard]] std::uint32_t crc32_by_table(std::uint32_t so_far, std::span<std::byte const> bytes) noexcept;

}  // namespace crossrank::codec
