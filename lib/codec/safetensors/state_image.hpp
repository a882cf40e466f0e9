#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <crossrank/state.hpp>

#include "lib/codec/io/byte_source.hpp"
#include "lib/codec/safetensors/header_parser.hpp"
#include "lib/codec/safetensors/image_metadata.hpp"

namespace crossrank::codec {

/// What a file must be to be opened.
enum class ImageKind : std::uint8_t {
  workspace,  ///< a state image with all its checksums; anything else is a `FormatError`
  plain,      ///< any safetensors file; one whose name or keys say state image must have intact checksums
};

struct ReadOptions {
  ImageKind kind = ImageKind::workspace;
  Strictness strictness = Strictness::strict;
  /// Most bytes of header. Empty: what the format allows for a workspace's own files, 32 MiB for others.
  std::optional<std::uint64_t> header_limit{};
};

/// A safetensors file opened for reading: its header is read and checked whole, its data is not touched.
class StateImage {
 public:
  /// Costs in proportion to the header. `FormatError` when the file is not what `options` asks for, or is a state image
  /// under the name of another one; `IoError`.
  [[nodiscard]] static StateImage open(std::shared_ptr<ByteSource const> source, ReadOptions const& options = {});

  /// The tensors in the order of their data.
  [[nodiscard]] std::span<HeaderEntry const> entries() const noexcept { return header_.entries; }
  [[nodiscard]] Header const& header() const noexcept { return header_; }
  /// Whether the file carries checksums of ours, so that reads are verified.
  [[nodiscard]] bool checked() const noexcept { return checked_; }
  /// Who wrote it; the defaults for files that are not ours.
  [[nodiscard]] ImageIdentity const& identity() const noexcept { return identity_; }
  /// The config that was written; null for files that are not ours.
  [[nodiscard]] Json const& config() const noexcept { return config_; }

  /// Reads the bytes of one tensor and compares their checksum, keeping nothing. `UsageError` for an unknown name or a
  /// file without checksums, `FormatError` with section "data" when they differ.
  void verify(std::string_view name) const;
  /// One tensor, verified where there are checksums. A view of the source's memory where it has one, else new memory.
  [[nodiscard]] Tensor read(std::string_view name) const;
  /// Everything, verified before any of it is returned: config, and weights in the order in which they were written.
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
  std::vector<std::uint32_t> by_name_{};  ///< numbers of `header_.entries`, sorted by name
  Json config_{};
  std::vector<std::uint64_t> checksums_{};  ///< in data order
  bool checked_ = false;
};

}  // namespace crossrank::codec
