#pragma once
#include <cstdint>
#include <string>

namespace crossrank::codec {

/// A record of an archive that will be written.
struct ZipEntry {
  std::string name{};
  std::uint64_t size = 0;
};

/// What stands before a record's data when it begins at `header_at`; padded so that the data begins on 64 bytes.
[[nodiscard]] std::string zip_local_header(std::uint64_t header_at, ZipEntry const& entry);
/// What follows the data.
[[nodiscard]] std::string zip_descriptor(ZipEntry const& entry, std::uint32_t crc);
/// The record's entry in the directory.
[[nodiscard]] std::string zip_central_header(ZipEntry const& entry, std::uint64_t header_at, std::uint32_t crc);
/// Both end records of a directory of `bytes` that begins at `begin`; the wide one always, as torch does.
[[nodiscard]] std::string zip_end_records(std::uint64_t count, std::uint64_t bytes, std::uint64_t begin);

}  // namespace crossrank::codec
