#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/codec/io/byte_source.hpp"
#include "lib/codec/torch/zip/zip_records.hpp"

namespace crossrank::codec {

/// Returns the size of the archive that `ZipWriter` makes of these records.
[[nodiscard]] std::uint64_t zip_file_bytes(std::vector<ZipEntry> const& entries);

/// Writes an uncompressed archive front to back, as torch does: data begins on a multiple of 64 bytes, CRCs follow it,
/// and ZIP64 is used if a number needs it. Keeps only small buffers.
class ZipWriter {
 public:
  ZipWriter(std::vector<ZipEntry> entries, ByteSink& sink);
  /// Writes the next bytes of the data of all records, in order. `UsageError` for more bytes than the records have.
  void write(std::span<std::byte const> bytes);
  /// Writes the directory. `UsageError` when bytes are missing.
  void finish();

 private:
  struct Written {
    std::uint64_t header = 0;  ///< offset of the record's local header
    std::uint32_t crc = 0;
  };

  void begin_record();
  void end_record();
  void skip_finished();
  void put(std::string_view bytes);
  void flush();

  std::vector<ZipEntry> entries_;
  ByteSink& sink_;
  std::vector<Written> written_{};
  std::uint64_t position_ = 0;  ///< offset in the file, including the buffer
  std::string buffer_{};
  std::uint64_t left_ = 0;  ///< remaining bytes of the current record
};

}  // namespace crossrank::codec
