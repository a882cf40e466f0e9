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

/// A tensor and its position in the file.
struct ImageExtent {
  std::uint64_t offset = 0;
  Tensor tensor{};
  std::string_view name{};  ///< view of a name in the state dict
};

/// The plan of a state image before its bytes are written: the header without checksums, and the extents.
///
/// A caller writes each extent, hashes the same bytes, sets the checksum, and writes the header last. `write_image`
/// does all of that for a sink. The plan holds views of the tensors; the state dict must outlive it.
class ImagePlan {
 public:
  /// Plans an image. `UsageError` for names that are not UTF-8, contain NUL, exceed 1,024 bytes or are "__metadata__";
  /// for a config that `encode_config` refuses; for tensors that are not on the CPU; for more than the format can hold.
  ImagePlan(Json const& config, StateDict const& weights, ImageOptions const& options);

  /// Returns the extents in the order of the data, without absent tensors.
  [[nodiscard]] std::span<ImageExtent const> extents() const noexcept { return extents_; }
  /// Returns the offset at which the data begins.
  [[nodiscard]] std::uint64_t header_bytes() const noexcept { return layout_.header_bytes(); }
  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return layout_.file_bytes(); }
  /// Sets the `checksum` of the bytes of `extents()[extent]`.
  void set_checksum(std::size_t extent, std::uint64_t digest);
  /// Returns the header with all checksums. `UsageError` while the checksum of an extent is missing.
  [[nodiscard]] std::span<std::byte const> sealed_header();

 private:
  ImageLayout layout_;
  std::vector<ImageExtent> extents_{};
  std::vector<bool> known_{};
  std::vector<std::uint64_t> digests_{};
  std::string header_{};
};

/// Writes the image. Reads every byte once, hashes and writes it while it is in the cache, and writes the header last.
void write_image(ImagePlan& plan, ByteSink& sink);

/// Returns the offset of the digits of the header's own checksum in a sealed header; nothing when there are none.
[[nodiscard]] std::optional<std::size_t> find_header_checksum(std::span<std::byte const> header) noexcept;

}  // namespace crossrank::codec
