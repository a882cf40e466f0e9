#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/dtype.hpp>
#include <crossrank/shape.hpp>

#include "lib/codec/io/limits.hpp"

namespace crossrank::codec {

/// One tensor as the header of a file describes it, checked.
struct HeaderEntry {
  std::string name{};
  Dtype dtype = Dtype::u8;
  Shape shape{};
  std::uint64_t begin = 0;  ///< first byte, counted from the start of the data
  std::uint64_t end = 0;    ///< byte behind the last
  std::uint64_t at = 0;     ///< where in the file the header speaks of it, for messages
  [[nodiscard]] std::uint64_t nbytes() const noexcept { return end - begin; }
};

/// The header of a safetensors file.
struct Header {
  std::vector<HeaderEntry> entries{};                           ///< in the order of their data
  std::vector<std::pair<std::string, std::string>> metadata{};  ///< in the order of the file
  std::uint64_t data_start = 0;                                 ///< byte of the file where the data begins
  std::uint64_t data_bytes = 0;
  /// Null when there is no such key.
  [[nodiscard]] std::string const* find_metadata(std::string_view key) const noexcept;
};

/// What to do with what the reference reader lets pass and the format's text forbids or leaves open: repeated names,
/// unknown keys, entries in array form, null metadata, names beyond the limits.
enum class Strictness : std::uint8_t { strict, lenient };

struct ParseOptions {
  Strictness strictness = Strictness::strict;
  std::uint64_t header_limit = std::uint64_t{32} << 20;  ///< most bytes of header; at most `max_header_bytes`
  std::string source{};                                  ///< for messages
};

/// Hint of an error about a file that is well formed and passes a limit.
inline constexpr char const* limit_hint =
    "the file may be well formed, but crossrank does not read it: save it again within this limit";

/// Bytes of length field and header together, from the first 8 bytes of a file of `file_size` bytes.
/// `FormatError`, section "length".
[[nodiscard]] std::uint64_t header_extent(std::span<std::byte const> first, std::uint64_t file_size,
                                          ParseOptions const& options);

/// Reads and checks a header whole, before anything of it is exposed. `prefix` holds the first `header_extent` bytes.
/// `FormatError` with section "length", "header" or "data", the byte, and the tensor where there is one.
[[nodiscard]] Header parse_header(std::span<std::byte const> prefix, std::uint64_t file_size,
                                  ParseOptions const& options);

}  // namespace crossrank::codec
