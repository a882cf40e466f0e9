#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/codec/io/byte_source.hpp"
#include "lib/codec/io/chunk_coverage.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// The bytes of one piece of a tensor, row-major, wherever they are.
class ChunkData {
 public:
  virtual ~ChunkData() = default;
  /// A source of them, good for the reads of one call. `IoError`, `FormatError`.
  [[nodiscard]] virtual std::shared_ptr<codec::ByteSource const> open() const = 0;
  /// The file that holds them.
  [[nodiscard]] virtual std::string const& file() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t bytes() const noexcept = 0;
  /// Whether a checksum came with them.
  [[nodiscard]] virtual bool has_checksum() const noexcept { return false; }
  /// Reads all and compares the checksum, where there is one. `FormatError`, `IoError`.
  virtual void verify() const {}
};

/// A tensor in pieces that tile it exactly.
struct ChunkedTensor {
  SourceTensor tensor{};
  std::vector<codec::ChunkBox> boxes{};
  std::vector<std::shared_ptr<ChunkData const>> data{};  ///< one for each box
};

/// Whole tensors out of pieces in many files: any range of the row-major form is put together from the rows of the
/// pieces that it meets.
class ChunkedSource final : public DescribedSource {
 public:
  /// The pieces tile their tensors. `FormatError` where a cut falls inside a byte.
  ChunkedSource(std::string name, std::vector<ChunkedTensor> tensors, Json attributes, std::uint64_t bytes_on_disk);

  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;
  [[nodiscard]] std::vector<std::string> files_of(std::size_t tensor) const override;
  /// The pieces of a tensor.
  [[nodiscard]] std::span<std::shared_ptr<ChunkData const> const> data_of(std::size_t tensor) const {
    return chunks_[tensor].data;
  }

 private:
  /// Lengths in units of whole bytes: elements, or groups of those that share bytes.
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
