#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/tensor/dtype.hpp>
#include <crossrank/tensor/shape.hpp>

#include "lib/codec/io/limits.hpp"

namespace crossrank::codec {

/// The checked entry of one tensor in a header.
struct HeaderEntry {
  std::string name{};
  Dtype dtype = Dtype::u8;
  Shape shape{};
  std::uint64_t begin = 0;  ///< first byte, counted from the start of the data
  std::uint64_t end = 0;    ///< one past the last byte
  std::uint64_t at = 0;     ///< byte of the file where the header names it, for messages
  [[nodiscard]] std::uint64_t nbytes() const noexcept { return end - begin; }
};

/// The header of a safetensors file.
struct Header {
  std::vector<HeaderEntry> entries{};                           ///< in the order of their data
  std::vector<std::pair<std::string, std::string>> metadata{};  ///< in the order of the file
  std::uint64_t data_start = 0;                                 ///< byte of the file where the data begins
  std::uint64_t data_bytes = 0;
  /// Returns the value of `key`, or null.
  [[nodiscard]] std::string const* find_metadata(std::string_view key) const noexcept;
};

/// Whether to refuse what the reference reader accepts although the format's text forbids it or leaves it open:
/// repeated names, unknown keys, entries in array form, null metadata, names beyond the limits.
enum class Strictness : std::uint8_t { strict, lenient };

struct ParseOptions {
  Strictness strictness = Strictness::strict;
  std::uint64_t header_limit = max_header_bytes;  ///< longest header in bytes; at most `max_header_bytes`
  std::string source{};                           ///< name of the source, for messages
};

/// Hint of an error about a file that may be well formed but exceeds a limit.
inline constexpr char const* limit_hint =
    "the file may be well formed, but exceeds a limit of crossrank: save it again within this limit";

/// Returns the bytes of length field and header together, from the first 8 bytes of a file of `file_size` bytes.
/// `FormatError`, section "length".
[[nodiscard]] std::uint64_t header_extent(std::span<std::byte const> first, std::uint64_t file_size,
                                          ParseOptions const& options);

/// Reads and checks a whole header before it returns any part of it. `prefix` holds the first `header_extent` bytes.
/// `FormatError` with section "length", "header" or "data", the byte, and the tensor if there is one.
[[nodiscard]] Header parse_header(std::span<std::byte const> prefix, std::uint64_t file_size,
                                  ParseOptions const& options);

}  // namespace crossrank::codec
