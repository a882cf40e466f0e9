#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/tensor/strided_runs.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// Runs of bytes of one tensor and their places in a row-major target.
struct StridedCopy {
  StridedRuns from{};
  std::uint64_t to_first = 0;   ///< byte of the target where the first run goes
  std::uint64_t to_stride = 0;  ///< from the start of one run to that of the next, in the target

  /// Copies the first `bytes` bytes of a tensor to the start of the target.
  [[nodiscard]] static StridedCopy whole(std::uint64_t bytes) noexcept {
    return {.from = {.run_bytes = bytes, .stride_bytes = bytes}, .to_stride = bytes};
  }
  /// Returns the byte of the target where run `number` goes.
  [[nodiscard]] std::uint64_t to(std::uint64_t number) const noexcept { return to_first + number * to_stride; }
  /// Returns whether a run may go to bytes `[offset, offset + size)` of the target.
  [[nodiscard]] bool reaches(std::uint64_t offset, std::uint64_t size) const noexcept {
    return to_first < offset + size && to(from.count - 1) + from.run_bytes > offset;
  }
  /// Makes one run of runs that follow each other without a gap on both sides.
  void merge_adjacent() noexcept {
    if (from.run_bytes != from.stride_bytes || from.run_bytes != to_stride) return;
    from.run_bytes *= from.count;
    from.count = 1;
  }
};

/// Reads the parts of the runs that belong to bytes `[offset, offset + out.size())` of the target into `out`. Other
/// bytes of `out` stay as they are. Many short runs are read at once into a block of at most 1 MiB.
void read_strided_runs(ShardSource const& source, std::size_t tensor, StridedCopy const& copy, std::uint64_t offset,
                       std::span<std::byte> out);

}  // namespace crossrank::checkpoint
