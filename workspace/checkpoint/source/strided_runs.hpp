#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// StridedRuns of one tensor of a source and where in a row-major target they go.
struct StridedRuns {
  std::uint64_t rows = 1;
  std::uint64_t run = 0;
  std::uint64_t from_at = 0;
  std::uint64_t from_stride = 0;
  std::uint64_t to_at = 0;
  std::uint64_t to_stride = 0;
};

/// Fills from `source` what the runs put into bytes `[offset, offset + out.size())` of the target; other bytes of `out`
/// stay. Short runs are read many at once, by way of a block of at most 1 MiB.
void read_strided_runs(ShardSource const& source, std::size_t tensor, StridedRuns const& runs, std::uint64_t offset,
                       std::span<std::byte> out);

}  // namespace crossrank::checkpoint
