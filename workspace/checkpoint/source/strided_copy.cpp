#include "workspace/checkpoint/source/strided_runs.hpp"

#include <algorithm>
#include <memory>

#include "lib/tensor/copy_memory.hpp"

namespace crossrank::checkpoint {
namespace {

// Large enough to amortise a system call, small enough to stay in a core's cache between read and copy.
constexpr std::uint64_t block_bytes = std::uint64_t{1} << 20;
// A run of at least this size gets its own system call.
constexpr std::uint64_t long_run = std::uint64_t{128} << 10;
// Reading whole rows is faster than reading runs one by one if at least one byte in four is used.
constexpr std::uint64_t most_waste = 4;
// Shorter runs are always read as whole rows.
constexpr std::uint64_t short_run = std::uint64_t{16} << 10;

class StridedReader {
 public:
  StridedReader(ShardSource const& source, std::size_t tensor, StridedRuns const& runs, std::uint64_t offset,
                std::span<std::byte> out)
      : source_(source), tensor_(tensor), runs_(runs), begin_(offset), end_(offset + out.size()), out_(out) {}

  void read() {
    bool const gather = runs_.rows > 1 && runs_.run < long_run &&
                        (runs_.run < short_run || runs_.run * most_waste >= runs_.from_stride) &&
                        runs_.from_stride <= block_bytes;
    auto row = first_row();
    while (row < runs_.rows && to(row) < end_) {
      auto const whole = gather ? whole_rows(row) : 0;
      if (whole > 1) {
        read_block(row, whole);
        row += whole;
      } else {
        read_row(row++);
      }
    }
  }

 private:
  [[nodiscard]] std::uint64_t to(std::uint64_t row) const { return runs_.to_at + row * runs_.to_stride; }
  [[nodiscard]] std::uint64_t first_row() const {
    if (begin_ <= runs_.to_at || runs_.to_stride == 0) return 0;
    return (begin_ - runs_.to_at) / runs_.to_stride;
  }
  /// Returns how many rows from `row` on are completely inside the window and fit into one block.
  [[nodiscard]] std::uint64_t whole_rows(std::uint64_t row) const {
    if (to(row) < begin_ || to(row) + runs_.run > end_) return 0;
    auto const inside = (end_ - runs_.run - to(row)) / runs_.to_stride + 1;
    auto const fitting = std::max<std::uint64_t>(1, block_bytes / runs_.from_stride);
    return std::min({inside, fitting, runs_.rows - row});
  }

  void read_row(std::uint64_t row) {
    auto const first = std::max(begin_, to(row));
    auto const last = std::min(end_, to(row) + runs_.run);
    if (first >= last) return;
    auto const from = runs_.from_at + row * runs_.from_stride + (first - to(row));
    source_.read(tensor_, from,
                 out_.subspan(static_cast<std::size_t>(first - begin_), static_cast<std::size_t>(last - first)));
  }

  void read_block(std::uint64_t row, std::uint64_t count) {
    if (!block_) block_ = std::make_unique_for_overwrite<std::byte[]>(block_bytes);
    auto const bytes = (count - 1) * runs_.from_stride + runs_.run;
    source_.read(tensor_, runs_.from_at + row * runs_.from_stride, {block_.get(), static_cast<std::size_t>(bytes)});
    for (std::uint64_t i = 0; i < count; ++i) {
      copy_memory(out_.data() + (to(row + i) - begin_), block_.get() + i * runs_.from_stride,
                  static_cast<std::size_t>(runs_.run));
    }
  }

  ShardSource const& source_;
  std::size_t tensor_;
  StridedRuns const& runs_;
  std::uint64_t begin_;
  std::uint64_t end_;
  std::span<std::byte> out_;
  std::unique_ptr<std::byte[]> block_{};
};

}  // namespace

void read_strided_runs(ShardSource const& source, std::size_t tensor, StridedRuns const& runs, std::uint64_t offset,
                       std::span<std::byte> out) {
  StridedReader(source, tensor, runs, offset, out).read();
}

}  // namespace crossrank::checkpoint
