#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/codec/torch/zip/zip_records.hpp"

namespace crossrank::codec {

/// The layout of a stored archive, for writers that do not write front to back. The bytes equal those of `ZipWriter`.
class ZipLayout {
 public:
  explicit ZipLayout(std::vector<ZipEntry> entries);

  [[nodiscard]] std::vector<ZipEntry> const& entries() const noexcept { return entries_; }
  /// Returns the offset of a record's local header.
  [[nodiscard]] std::uint64_t header_at(std::size_t entry) const { return offsets_.at(entry).header; }
  /// Returns the offset of a record's data.
  [[nodiscard]] std::uint64_t data_at(std::size_t entry) const { return offsets_.at(entry).data; }
  /// Returns the offset of the directory, which follows all records.
  [[nodiscard]] std::uint64_t directory_at() const noexcept { return directory_at_; }
  /// Returns the directory, with these CRCs.
  [[nodiscard]] std::string directory(std::span<std::uint32_t const> crcs) const;
  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return file_bytes_; }

 private:
  struct RecordOffsets {
    std::uint64_t header = 0;
    std::uint64_t data = 0;
  };
  std::vector<ZipEntry> entries_;
  std::vector<RecordOffsets> offsets_{};
  std::uint64_t directory_at_ = 0;
  std::uint64_t file_bytes_ = 0;
};

}  // namespace crossrank::codec
