#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace crossrank::checkpoint {

/// What one rank's file holds of a tensor that is cut over the ranks.
struct FileSample {
  std::string file{};
  std::string tensor{};
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;                                ///< as the file's directory has it; 0: it was not computed
  std::function<std::vector<std::byte>()> beginning{};  ///< reads the first bytes
};

/// Refuses two files whose samples are the same: one rank's file was copied over the other's. Compares recorded
/// checksums, and reads only where they agree: numbers that are all equal say nothing. `FormatError`.
void require_no_duplicate_files(std::vector<FileSample> const& samples, std::string const& where);

/// Whether bytes are not the same number again and again.
[[nodiscard]] bool is_distinctive(std::vector<std::byte> const& bytes);

}  // namespace crossrank::checkpoint
