#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/codec/io/byte_source.hpp"
#include "lib/codec/io/chunk_coverage.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// The row-major bytes of one piece of a tensor.
class ChunkData {
 public:
  virtual ~ChunkData() = default;
  /// Opens the bytes for the reads of one call. Throws `IoError` or `FormatError`.
  [[nodiscard]] virtual std::shared_ptr<codec::ByteSource const> open() const = 0;
  /// Returns the path of the file that holds the bytes.
  [[nodiscard]] virtual std::string const& file() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t bytes() const noexcept = 0;
  /// Returns whether the file has a checksum for the bytes.
  [[nodiscard]] virtual bool has_checksum() const noexcept { return false; }
  /// Reads all bytes and compares them with their checksum, if there is one. Throws `FormatError` or `IoError`.
  virtual void verify() const {}
};

/// A tensor whose pieces tile it exactly.
struct ChunkedTensor {
  SourceTensor tensor{};
  std::vector<codec::ChunkBox> boxes{};
  std::vector<std::shared_ptr<ChunkData const>> data{};  ///< one for each box
};

/// Presents pieces in many files as whole tensors. A read collects its byte range from the rows of all pieces that
/// intersect it.
class ChunkedSource final : public DescribedSource {
 public:
  /// Expects pieces that tile their tensors. Throws `FormatError` if a piece begins or ends inside a byte.
  ChunkedSource(std::string name, std::vector<ChunkedTensor> tensors, Json attributes, std::uint64_t bytes_on_disk);

  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;
  [[nodiscard]] std::vector<std::string> files_of(std::size_t tensor) const override;
  /// Returns the data of each piece of a tensor.
  [[nodiscard]] std::span<std::shared_ptr<ChunkData const> const> data_of(std::size_t tensor) const {
    return chunks_[tensor].data;
  }

 private:
  /// The pieces of one tensor. Lengths count units of `unit` bytes: elements, or the smallest groups of elements that
  /// fill whole bytes.
  struct Chunks {
    std::size_t unit = 1;
    std::vector<std::int64_t> lengths{};
    std::vector<codec::ChunkBox> boxes{};
    std::vector<std::shared_ptr<ChunkData const>> data{};
  };
  [[nodiscard]] static Chunks chunks_of(ChunkedTensor tensor, std::string const& name);
  static void read_units(Chunks const& pieces, std::int64_t first, std::int64_t last, std::byte* out);

  std::vector<Chunks> chunks_{};
};

}  // namespace crossrank::checkpoint
