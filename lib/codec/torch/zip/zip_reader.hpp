#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/codec/io/byte_source.hpp"

namespace crossrank::codec {

/// One file inside an archive. It is stored as it is, so that it can be read in place.
struct ZipRecord {
  std::string name{};
  std::uint64_t begin = 0;  ///< first byte of its data in the archive
  std::uint64_t size = 0;
  std::uint32_t crc = 0;
  std::uint64_t at = 0;  ///< where in the archive the directory speaks of it, for messages
};

/// A zip archive whose directory was read and checked whole: every record is stored, lies inside the file, overlaps no
/// other, and has a name of its own. ZIP64 included; what spans volumes, is packed or encrypted is refused.
class ZipArchive {
 public:
  /// Reads the directory and each record's local header. `FormatError` with section "zip directory" or "zip record" and
  /// the byte; `IoError`.
  [[nodiscard]] static ZipArchive open(std::shared_ptr<ByteSource const> source);

  /// In the order of the directory.
  [[nodiscard]] std::span<ZipRecord const> records() const noexcept { return records_; }
  /// Null when there is none.
  [[nodiscard]] ZipRecord const* find(std::string_view name) const noexcept;
  [[nodiscard]] ByteSource const& source() const noexcept { return *source_; }
  /// Reads a small record whole, its CRC not looked at. `FormatError` when it is larger than `most`.
  [[nodiscard]] std::vector<std::byte> read_small(ZipRecord const& record, std::uint64_t most) const;
  /// Reads all bytes of a record and compares their CRC, keeping nothing.
  [[nodiscard]] bool crc_holds(ZipRecord const& record) const;

 private:
  ZipArchive() = default;
  void read_directory();
  void place_records();
  void index_names();

  std::shared_ptr<ByteSource const> source_{};
  std::uint64_t directory_begin_ = 0;
  std::vector<ZipRecord> records_{};
  std::vector<std::uint32_t> by_name_{};  ///< numbers of `records_`, sorted by name
};

/// Throws the `FormatError` for a record that does not match its CRC.
[[noreturn]] void refuse_crc(ByteSource const& source, ZipRecord const& record);

}  // namespace crossrank::codec
