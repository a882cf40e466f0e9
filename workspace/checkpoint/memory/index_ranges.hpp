#pragma once
#include <cstdint>
#include <vector>

#include <crossrank/checkpoint/placements.hpp>

namespace crossrank::checkpoint {

/// Consecutive entries of one dimension.
struct IndexRange {
  std::int64_t begin = 0;
  std::int64_t length = 0;
  bool operator==(IndexRange const&) const = default;
};

/// The entries of one dimension that a rank holds, in the order in which its tensor has them.
using IndexRanges = std::vector<IndexRange>;

/// Returns the number of entries.
[[nodiscard]] std::int64_t length_of(IndexRanges const& ranges) noexcept;

/// One of the ranks along a dimension of a mesh.
struct MeshPlace {
  std::int64_t coordinate = 0;
  std::int64_t size = 1;
};

/// Returns the chunks of one rank by the rule of `StridedShard`; with one part, by that of `Shard`.
[[nodiscard]] IndexRanges strided_chunk_of(IndexRanges const& ranges, std::int64_t split_factor, MeshPlace at);

}  // namespace crossrank::checkpoint
