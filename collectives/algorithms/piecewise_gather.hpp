#pragma once
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "collectives/algorithms/execution.hpp"
#include "lib/tensor/copy_memory.hpp"

namespace crossrank::algorithms {

/// Bytes of each rank that travel in one operation of a generic algorithm; a whole number of elements of any dtype.
inline constexpr std::size_t piece_bytes = std::size_t{256} << 10;

/// Returns the offset of `rank`'s part in the concatenation of all parts.
[[nodiscard]] inline std::size_t offset_of(std::span<std::size_t const> counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
}

/// The intersection of two ranges.
struct Overlap {
  std::size_t begin = 0;
  std::size_t end = 0;
  [[nodiscard]] bool empty() const noexcept { return begin >= end; }
  [[nodiscard]] std::size_t size() const noexcept { return empty() ? 0 : end - begin; }
};
[[nodiscard]] inline Overlap overlap(std::size_t begin, std::size_t size, std::size_t other, std::size_t other_size) {
  return {std::max(begin, other), std::min(begin + size, other + other_size)};
}

/// Copies the bytes of `piece` that lie in the wanted range into `out`. `piece` begins at offset `at`. The range begins
/// at `wanted` and has the size of `out`.
inline void take_overlap(std::span<std::byte const> piece, std::size_t at, std::size_t wanted,
                         std::span<std::byte> out) {
  auto const common = overlap(at, piece.size(), wanted, out.size());
  if (!common.empty()) {
    move_memory(out.data() + (common.begin - wanted), piece.data() + (common.begin - at), common.size());
  }
}

/// Gathers the bytes of all ranks on all ranks, `piece_bytes` of each at a time, and hands over the pieces of each
/// step.
class PiecewiseGather : public Algorithm {
 public:
  [[nodiscard]] std::optional<spi::RequestId> next(spi::Transport& transport) override;

 protected:
  PiecewiseGather(spi::Signature signature, std::span<std::byte const> mine) : signature_(signature), mine_(mine) {}
  /// Sets the number of bytes of each rank. Call it before the first step.
  void give(std::vector<std::size_t> counts) { counts_ = std::move(counts); }
  /// Bytes from `at` on of each rank; shorter or empty where a rank has no more.
  virtual void take(std::size_t at, std::span<std::span<std::byte const> const> pieces) = 0;

  spi::Signature signature_;
  std::span<std::byte const> mine_;

 private:
  void show_pieces();

  std::vector<std::size_t> counts_;
  std::vector<std::size_t> step_counts_;
  std::vector<std::byte> scratch_;
  std::size_t at_ = 0;
  bool under_way_ = false;
};

}  // namespace crossrank::algorithms
