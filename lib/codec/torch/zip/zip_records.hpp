#pragma once
#include <cstdint>
#include <string>

namespace crossrank::codec {

/// A record of an archive to be written.
struct ZipEntry {
  std::string name{};
  std::uint64_t size = 0;
};

/// Returns the local header of a record at `header_at`, padded so that the data begins on a multiple of 64 bytes.
[[nodiscard]] std::string zip_local_header(std::uint64_t header_at, ZipEntry const& entry);
/// Returns the descriptor that follows the data.
[[nodiscard]] std::string zip_descriptor(ZipEntry const& entry, std::uint32_t crc);
/// Returns the record's entry in the directory.
[[nodiscard]] std::string zip_central_header(ZipEntry const& entry, std::uint64_t header_at, std::uint32_t crc);
/// Returns both end records of a directory of `bytes` bytes at `begin`. Always includes the ZIP64 record, as torch
/// does.
[[nodiscard]] std::string zip_end_records(std::uint64_t count, std::uint64_t bytes, std::uint64_t begin);

}  // namespace crossrank::codec
