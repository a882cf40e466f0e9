#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <crossrank/checkpoint/placements.hpp>

#include "lib/codec/io/chunk_coverage.hpp"
#include "workspace/checkpoint/memory/index_ranges.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// The piece of a tensor that one rank gets.
struct PlacedTensor {
  std::size_t tensor = 0;              ///< in the source
  std::vector<IndexRanges> entries{};  ///< of each dimension
};

/// Pieces of the tensors of another source, as placements give them to one rank.
class PlacedSource final : public DescribedSource {
 public:
  /// Throws `UsageError` if a piece begins or ends inside a byte.
  PlacedSource(std::shared_ptr<ShardSource const> whole, std::vector<PlacedTensor> const& placed);

  [[nodiscard]] bool is_in_memory() const noexcept override { return whole_->is_in_memory(); }
  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override;

  /// Receives a range of bytes of a tensor of the other source, and its place in the piece.
  using VisitInput =
      std::function<void(std::size_t tensor, std::uint64_t begin, std::uint64_t bytes, std::uint64_t to)>;
  /// Visits the inputs of bytes `[offset, offset + size)` of a piece, in its order.
  void for_each_input(std::size_t tensor, std::uint64_t offset, std::uint64_t size, VisitInput const& visit) const;

 private:
  /// A box of a piece and its place in the whole tensor, in units of whole bytes.
  struct Box {
    codec::ChunkBox box{};
    std::vector<std::int64_t> begin{};
  };
  struct Piece {
    std::size_t tensor = 0;
    std::size_t unit = 1;
    std::vector<std::int64_t> lengths{};
    std::vector<std::int64_t> whole{};
    std::vector<Box> boxes{};
  };
  [[nodiscard]] Piece piece_of(PlacedTensor const& placed) const;

  std::shared_ptr<ShardSource const> whole_;
  std::vector<Piece> pieces_{};
};

}  // namespace crossrank::checkpoint
