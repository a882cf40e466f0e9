#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

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
    from.stride_bytes = to_stride = from.run_bytes;
    from.count = 1;
  }
};

/// Calls `visit(begin, bytes)` for the bytes of the tensor that go to bytes `[offset, offset + size)` of the target, in
/// the order of the runs. Runs that follow each other in the tensor are visited as one.
template <class Visitor>
void for_each_input_range(StridedCopy const& copy, std::uint64_t offset, std::uint64_t size, Visitor const& visit) {
  auto const end = offset + size;
  auto const skipped = offset <= copy.to_first || copy.to_stride == 0 ? 0 : (offset - copy.to_first) / copy.to_stride;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  for (auto row = skipped; row < copy.from.count && copy.to(row) < end; ++row) {
    auto const first = std::max(offset, copy.to(row));
    auto const last = std::min(end, copy.to(row) + copy.from.run_bytes);
    if (first >= last) continue;
    auto const from = copy.from.start(row) + (first - copy.to(row));
    if (bytes > 0 && from == begin + bytes) {
      bytes += last - first;
      continue;
    }
    if (bytes > 0) visit(begin, bytes);
    begin = from;
    bytes = last - first;
  }
  if (bytes > 0) visit(begin, bytes);
}

/// Reads the parts of the runs that belong to bytes `[offset, offset + out.size())` of the target into `out`. Other
/// bytes of `out` stay as they are. Many short runs of a file are read at once into a block of at most 1 MiB. Returns
/// how many bytes of `out` it has filled.
[[nodiscard]] std::uint64_t read_strided_runs(ShardSource const& source, std::size_t tensor, StridedCopy const& copy,
                                              std::uint64_t offset, std::span<std::byte> out);

/// Throws `FormatError` unless the pieces of a tensor have filled all of a window of it: the rest would be garbage.
void require_filled(std::string const& tensor, std::uint64_t filled, std::uint64_t bytes);

}  // namespace crossrank::checkpoint
