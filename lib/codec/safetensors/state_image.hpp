#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <crossrank/state.hpp>

#include "lib/codec/io/byte_source.hpp"
#include "lib/codec/io/limits.hpp"
#include "lib/codec/safetensors/header_parser.hpp"
#include "lib/codec/safetensors/image_metadata.hpp"

namespace crossrank::codec {

/// Kind of file that may be opened.
enum class ImageKind : std::uint8_t {
  workspace,  ///< a state image with all its checksums; anything else is a `FormatError`
  plain,      ///< any safetensors file; one with the name or keys of a state image must have intact checksums
};

struct ReadOptions {
  ImageKind kind = ImageKind::workspace;
  Strictness strictness = Strictness::strict;
  std::uint64_t header_limit = max_header_bytes;  ///< longest header in bytes; at most `max_header_bytes`
};

/// A safetensors file opened for reading, with a header that was read and checked completely.
class StateImage {
 public:
  /// Opens a file and reads its header; no data. `FormatError` when the file is not of the kind in `options`, or is a
  /// state image under the name of another one; `IoError`.
  [[nodiscard]] static StateImage open(std::shared_ptr<ByteSource const> source, ReadOptions const& options = {});

  /// Returns the tensors in the order of their data.
  [[nodiscard]] std::span<HeaderEntry const> entries() const noexcept { return header_.entries; }
  [[nodiscard]] Header const& header() const noexcept { return header_; }
  /// Returns whether the file has crossrank's checksums, so that reads are verified.
  [[nodiscard]] bool checked() const noexcept { return checked_; }
  /// Returns the writer's identity; the defaults for a file that is not a state image.
  [[nodiscard]] ImageIdentity const& identity() const noexcept { return identity_; }
  /// Returns the config; null for a file that is not a state image.
  [[nodiscard]] Json const& config() const noexcept { return config_; }

  /// Reads the bytes of one tensor and compares their checksum, without keeping them. `UsageError` for an unknown name
  /// or a file without checksums, `FormatError` with section "data" when they differ.
  void verify(std::string_view name) const;
  /// Returns one tensor, verified if there are checksums. It views the source's memory if possible, else new memory.
  [[nodiscard]] Tensor read(std::string_view name) const;
  /// Returns config and weights, in the order in which they were written, after verifying all of them.
  [[nodiscard]] RankState read_all() const;

 private:
  StateImage() = default;
  void take_metadata(std::span<std::byte const> prefix, ImageKind kind);
  [[nodiscard]] std::size_t index_of(std::string_view name) const;
  [[nodiscard]] std::vector<Tensor> read_tensors() const;
  [[nodiscard]] Tensor read_one(std::size_t index) const;
  void read_group(std::size_t first, std::size_t last, std::span<Tensor> out) const;
  [[nodiscard]] std::size_t group_end(std::size_t first) const noexcept;
  void compare(std::size_t index, std::uint64_t digest) const;
  void take_identity();
  void require_own_name() const;
  [[nodiscard]] std::string const& required(std::string_view key) const;
  [[noreturn]] void refuse_metadata(std::string message, std::string_view key) const;

  std::shared_ptr<ByteSource const> source_{};
  Header header_{};
  ImageIdentity identity_{};
  ImageOrder order_{};
  std::vector<std::uint32_t> by_name_{};  ///< indices of `header_.entries`, sorted by name
  Json config_{};
  std::vector<std::uint64_t> checksums_{};  ///< in data order
  bool checked_ = false;
};

}  // namespace crossrank::codec
