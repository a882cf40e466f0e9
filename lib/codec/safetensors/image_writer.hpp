#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <crossrank/state.hpp>

#include "lib/codec/io/byte_source.hpp"
#include "lib/codec/safetensors/image_layout.hpp"

namespace crossrank::codec {

/// One tensor and where in the file its bytes go.
struct ImageExtent {
  std::uint64_t offset = 0;
  Tensor tensor{};
  std::string_view name{};  ///< views the state dict that was planned
};

/// The layout of a state image before its bytes are written: the header but for its checksums, and the extents.
///
/// A caller writes each extent wherever it likes, hashes the same bytes in passing, hands the checksum in, and writes
/// the header last. `write_image` does all that for a sink. The plan holds views of the tensors; the state dict must
/// outlive it.
class ImagePlan {
 public:
  /// `UsageError` for names that are no UTF-8, contain NUL, exceed 1,024 bytes or are "__metadata__"; for what
  /// `encode_config` refuses; for tensors that are not on the CPU; for more than the format can hold.
  ImagePlan(Json const& config, StateDict const& weights, ImageOptions const& options);

  /// In the order of the data; without the absent ones.
  [[nodiscard]] std::span<ImageExtent const> extents() const noexcept { return extents_; }
  /// Where the data begins.
  [[nodiscard]] std::uint64_t header_bytes() const noexcept { return layout_.header_bytes(); }
  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return layout_.file_bytes(); }
  /// Tells the `checksum` of the bytes of `extents()[extent]`.
  void set_checksum(std::size_t extent, std::uint64_t digest);
  /// The header with all checksums. `UsageError` while one of a extent is missing.
  [[nodiscard]] std::span<std::byte const> sealed_header();

 private:
  ImageLayout layout_;
  std::vector<ImageExtent> extents_{};
  std::vector<bool> known_{};
  std::vector<std::uint64_t> digests_{};
  std::string header_{};
};

/// Writes the image: every byte is read once, hashed and written while it is in the cache; the header comes last.
void write_image(ImagePlan& plan, ByteSink& sink);

/// Offset of the digits of the header's own checksum in a sealed header; nothing when there are none.
[[nodiscard]] std::optional<std::size_t> find_header_checksum(std::span<std::byte const> header) noexcept;

}  // namespace crossrank::codec
