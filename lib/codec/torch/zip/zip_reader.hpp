#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/codec/io/byte_source.hpp"

namespace crossrank::codec {

/// A file inside an archive. It is stored uncompressed, so that it can be read in place.
struct ZipRecord {
  std::string name{};
  std::uint64_t begin = 0;  ///< first byte of its data in the archive
  std::uint64_t size = 0;
  std::uint32_t crc = 0;
  std::uint64_t at = 0;  ///< byte of the archive where the directory names it, for messages
};

/// A zip archive with a completely checked directory: every record is stored uncompressed, lies inside the file,
/// overlaps no other, and has a unique name. Supports ZIP64. Refuses several volumes, compression and encryption.
class ZipArchive {
 public:
  /// Reads the directory and each record's local header. `FormatError` with section "zip directory" or "zip record" and
  /// the byte; `IoError`.
  [[nodiscard]] static ZipArchive open(std::shared_ptr<ByteSource const> source);

  /// Returns the records in the order of the directory.
  [[nodiscard]] std::span<ZipRecord const> records() const noexcept { return records_; }
  /// Returns the record called `name`, or null.
  [[nodiscard]] ZipRecord const* find(std::string_view name) const noexcept;
  [[nodiscard]] ByteSource const& source() const noexcept { return *source_; }
  /// Reads a small record without checking its CRC. `FormatError` when it is larger than `max`.
  [[nodiscard]] std::vector<std::byte> read_small(ZipRecord const& record, std::uint64_t max) const;
  /// Reads all bytes of a record and returns whether their CRC matches.
  [[nodiscard]] bool crc_holds(ZipRecord const& record) const;

 private:
  ZipArchive() = default;
  void read_directory();
  void place_records();
  void index_names();

  std::shared_ptr<ByteSource const> source_{};
  std::uint64_t directory_begin_ = 0;
  std::vector<ZipRecord> records_{};
  std::vector<std::uint32_t> by_name_{};  ///< indices of `records_`, sorted by name
};

/// Throws the `FormatError` for a record that does not match its CRC.
[[noreturn]] void refuse_crc(ByteSource const& source, ZipRecord const& record);

}  // namespace crossrank::codec
