#include "workspace/checkpoint/source/strided_copy.hpp"

#include <algorithm>
#include <memory>

#include <crossrank/error.hpp>

#include "lib/tensor/copy_memory.hpp"

namespace crossrank::checkpoint {
namespace {

// Large enough to amortise a system call, small enough to stay in a core's cache between read and copy.
constexpr std::uint64_t block_bytes = std::uint64_t{1} << 20;
// A run of at least this size gets its own system call.
constexpr std::uint64_t long_run = std::uint64_t{128} << 10;
// Reading whole rows is faster than reading runs one by one if at least one byte in four is used.
constexpr std::uint64_t max_waste = 4;
// Shorter runs are always read as whole rows.
constexpr std::uint64_t short_run = std::uint64_t{16} << 10;

class StridedReader {
 public:
  StridedReader(ShardSource const& source, std::size_t tensor, StridedCopy const& copy, std::uint64_t offset,
                std::span<std::byte> out)
      : source_(source),
        tensor_(tensor),
        copy_(copy),
        runs_(copy.from),
        begin_(offset),
        end_(offset + out.size()),
        out_(out) {}

  /// Returns how many bytes were read.
  [[nodiscard]] std::uint64_t read() {
    bool const gather = !source_.is_in_memory() && runs_.count > 1 && runs_.run_bytes < long_run &&
                        (runs_.run_bytes < short_run || runs_.run_bytes * max_waste >= runs_.stride_bytes) &&
                        runs_.stride_bytes <= block_bytes;
    auto row = first_row();
    while (row < runs_.count && copy_.to(row) < end_) {
      auto const whole = gather ? whole_rows(row) : 0;
      if (whole > 1) {
        read_block(row, whole);
        row += whole;
      } else {
        read_row(row++);
      }
    }
    return filled_;
  }

 private:
  [[nodiscard]] std::uint64_t first_row() const {
    if (begin_ <= copy_.to_first || copy_.to_stride == 0) return 0;
    return (begin_ - copy_.to_first) / copy_.to_stride;
  }
  /// Returns how many rows from `row` on are completely inside the window and fit into one block.
  [[nodiscard]] std::uint64_t whole_rows(std::uint64_t row) const {
    if (copy_.to(row) < begin_ || copy_.to(row) + runs_.run_bytes > end_) return 0;
    auto const inside = (end_ - runs_.run_bytes - copy_.to(row)) / copy_.to_stride + 1;
    auto const fitting = std::max<std::uint64_t>(1, block_bytes / runs_.stride_bytes);
    return std::min({inside, fitting, runs_.count - row});
  }

  void read_row(std::uint64_t row) {
    auto const first = std::max(begin_, copy_.to(row));
    auto const last = std::min(end_, copy_.to(row) + runs_.run_bytes);
    if (first >= last) return;
    auto const from = runs_.start(row) + (first - copy_.to(row));
    source_.read(tensor_, from, out_.subspan(first - begin_, last - first));
    filled_ += last - first;
  }

  void read_block(std::uint64_t row, std::uint64_t count) {
    if (!block_) block_ = std::make_unique_for_overwrite<std::byte[]>(block_bytes);
    auto const bytes = (count - 1) * runs_.stride_bytes + runs_.run_bytes;
    source_.read(tensor_, runs_.start(row), {block_.get(), bytes});
    for (std::uint64_t i = 0; i < count; ++i) {
      copy_memory(out_.data() + (copy_.to(row + i) - begin_), block_.get() + i * runs_.stride_bytes, runs_.run_bytes);
    }
    filled_ += count * runs_.run_bytes;
  }

  ShardSource const& source_;
  std::size_t tensor_;
  StridedCopy const& copy_;
  StridedRuns const& runs_;
  std::uint64_t begin_;
  std::uint64_t end_;
  std::span<std::byte> out_;
  std::unique_ptr<std::byte[]> block_{};
  std::uint64_t filled_ = 0;
};

}  // namespace

std::uint64_t read_strided_runs(ShardSource const& source, std::size_t tensor, StridedCopy const& copy,
                                std::uint64_t offset, std::span<std::byte> out) {
  return StridedReader(source, tensor, copy, offset, out).read();
}

void require_filled(std::string const& tensor, std::uint64_t filled, std::uint64_t bytes) {
  if (filled == bytes) return;
  throw FormatError({.operation = "read a tensor",
                     .message = "the pieces of the tensor do not fill it",
                     .expected = std::to_string(bytes) + " bytes",
                     .got = std::to_string(filled) + " bytes",
                     .resource = tensor});
}

}  // namespace crossrank::checkpoint
