#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace crossrank::checkpoint {

/// Bytes that are compared at the beginning of a tensor.
inline constexpr std::uint64_t duplicate_sample_bytes = std::uint64_t{64} << 10;

/// The piece of a sharded tensor in one rank's file.
struct FileSample {
  std::string file{};
  std::string tensor{};
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;                                ///< checksum that the archive records; 0: none was computed
  std::function<std::vector<std::byte>()> beginning{};  ///< reads the first bytes
};

/// Throws `FormatError` if two files have the same samples, that is, one rank's file was copied over another's.
///
/// Compares recorded checksums and reads data only if they agree. Pieces whose values are all equal prove nothing.
void require_no_duplicate_files(std::vector<FileSample> const& samples, std::string const& where);

/// Returns whether the bytes are anything but one repeated value.
[[nodiscard]] bool is_distinctive(std::vector<std::byte> const& bytes);

}  // namespace crossrank::checkpoint
