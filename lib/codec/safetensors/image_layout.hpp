#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/tensor/dtype.hpp>
#include <crossrank/json.hpp>
#include <crossrank/tensor/shape.hpp>

#include "lib/codec/safetensors/image_metadata.hpp"

namespace crossrank::codec {

/// Options of a state image.
struct ImageOptions {
  ImageIdentity identity{};
  std::size_t alignment = 64;  ///< where the data begins: a power of two, 8 to 65536; 4096 suits direct I/O
};

/// One tensor of a state image, without its data.
struct ImageTensor {
  std::string_view name{};
  Dtype dtype = Dtype::u8;
  Shape shape{};
  bool absent = false;  ///< a name without a tensor
};

/// The layout of a state image before its data is known: all offsets, and a header with space for the checksums.
class ImageLayout {
 public:
  /// Lays out `tensors`, which are in the order of the state dict. `UsageError` for names that are not UTF-8, contain
  /// NUL, exceed 1,024 bytes or are "__metadata__"; for a config that `encode_config` refuses; for more than the format
  /// can hold.
  ImageLayout(Json const& config, std::span<ImageTensor const> tensors, ImageOptions const& options);

  struct Extent {
    std::size_t tensor = 0;    ///< index in the given tensors
    std::uint64_t offset = 0;  ///< offset in the file
    std::uint64_t bytes = 0;
  };
  /// Returns the extents in the order of the data, without absent tensors.
  [[nodiscard]] std::span<Extent const> extents() const noexcept { return extents_; }
  /// Returns the offset at which the data begins.
  [[nodiscard]] std::uint64_t header_bytes() const noexcept { return header_.size(); }
  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return file_bytes_; }
  /// Returns the header with these checksums, one per extent. `UsageError` for another number of them.
  [[nodiscard]] std::string sealed_header(std::span<std::uint64_t const> digests) const;

 private:
  std::vector<Extent> extents_{};
  std::string header_{};
  std::size_t checksums_at_ = 0;
  std::size_t header_checksum_at_ = 0;
  std::uint64_t file_bytes_ = 0;
};

}  // namespace crossrank::codec
