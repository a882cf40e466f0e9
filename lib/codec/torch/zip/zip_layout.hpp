#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/codec/torch/zip/zip_records.hpp"

namespace crossrank::codec {

/// Where everything of a stored archive stands, for writers that do not write front to back: the bytes of `ZipWriter`.
class ZipLayout {
 public:
  explicit ZipLayout(std::vector<ZipEntry> entries);

  [[nodiscard]] std::vector<ZipEntry> const& entries() const noexcept { return entries_; }
  /// First byte of a record's local header and of its data.
  [[nodiscard]] std::uint64_t header_at(std::size_t entry) const { return places_.at(entry).header; }
  [[nodiscard]] std::uint64_t data_at(std::size_t entry) const { return places_.at(entry).data; }
  /// What follows the data of all records.
  [[nodiscard]] std::uint64_t directory_at() const noexcept { return directory_at_; }
  [[nodiscard]] std::string directory(std::span<std::uint32_t const> crcs) const;
  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return file_bytes_; }

 private:
  struct Place {
    std::uint64_t header = 0;
    std::uint64_t data = 0;
  };
  std::vector<ZipEntry> entries_;
  std::vector<Place> places_{};
  std::uint64_t directory_at_ = 0;
  std::uint64_t file_bytes_ = 0;
};

}  // namespace crossrank::codec
