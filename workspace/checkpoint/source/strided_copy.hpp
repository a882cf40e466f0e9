#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// `rows` runs of `run` bytes at a fixed stride in one tensor of a source, and their places in a row-major target. All
/// members except `rows` are in bytes.
struct StridedRuns {
  std::uint64_t rows = 1;
  std::uint64_t run = 0;
  std::uint64_t from_at = 0;
  std::uint64_t from_stride = 0;
  std::uint64_t to_at = 0;
  std::uint64_t to_stride = 0;
};

/// Reads the parts of the runs that belong to bytes `[offset, offset + out.size())` of the target into `out`. Other
/// bytes of `out` stay as they are. Many short runs are read at once into a block of at most 1 MiB.
void read_strided_runs(ShardSource const& source, std::size_t tensor, StridedRuns const& runs, std::uint64_t offset,
                       std::span<std::byte> out);

}  // namespace crossrank::checkpoint
