#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/codec/io/byte_source.hpp"
#include "lib/codec/torch/zip/zip_records.hpp"

namespace crossrank::codec {

/// Bytes of the archive that `ZipWriter` makes of these records.
[[nodiscard]] std::uint64_t zip_file_bytes(std::vector<ZipEntry> const& entries);

/// Writes a stored archive front to back, as torch does: data begins on 64 bytes, CRCs follow it, ZIP64 where a number
/// needs it. Nothing but small buffers is kept.
class ZipWriter {
 public:
  ZipWriter(std::vector<ZipEntry> entries, ByteSink& sink);
  /// The next bytes of the data of all records, one record behind the other. `UsageError` for more than were announced.
  void write(std::span<std::byte const> bytes);
  /// Writes the directory. `UsageError` when bytes are missing.
  void finish();

 private:
  struct Written {
    std::uint64_t header = 0;  ///< where the record's local header stands
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
  std::uint64_t position_ = 0;  ///< in the file, the buffer included
  std::string buffer_{};
  std::uint64_t left_ = 0;  ///< bytes of the record at hand
};

}  // namespace crossrank::codec
