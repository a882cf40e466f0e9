#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <crossrank/tensor/dtype.hpp>
#include <crossrank/tensor/shape.hpp>

#include "lib/codec/io/chunk_coverage.hpp"
#include "lib/codec/io/linear_boxes.hpp"

namespace crossrank::checkpoint {

/// The smallest number of elements that fills whole bytes: two 4-bit elements fill one byte, four 6-bit elements fill
/// three.
struct ElementGroup {
  std::int64_t elements = 1;
  std::size_t bytes = 1;
};

[[nodiscard]] inline ElementGroup element_group(Dtype dtype) noexcept {
  auto const bits = bits_of(dtype);
  if (bits == 4) return {2, 1};
  if (bits == 6) return {4, 3};
  return {1, bits / 8};
}

/// A box of a tensor that is stored inside a row-major array.
struct StoredBox {
  codec::ChunkBox const* box = nullptr;
  std::span<std::int64_t const> lengths{};  ///< of the array
  std::span<std::int64_t const> begin{};    ///< place of the box in the array; empty: at its start
};

/// The intersection of a box of a tensor with a stored box, as rows that are contiguous in the tensor and in the array.
class BoxRuns {
 public:
  BoxRuns(std::span<std::int64_t const> lengths, codec::Box const& range, StoredBox const& stored)
      : lengths_(lengths), stored_(stored) {
    for (std::size_t dim = 0; dim < lengths.size(); ++dim) {
      begin_[dim] = std::max(range.begin[dim], stored.box->begin[dim]);
      end_[dim] = std::min(range.begin[dim] + range.size[dim], stored.box->begin[dim] + stored.box->size[dim]);
      any_ = any_ && begin_[dim] < end_[dim];
    }
  }
  /// Returns whether the intersection has elements. Check it before `for_each_run`.
  [[nodiscard]] bool any() const noexcept { return any_; }

  /// Calls `visit(in, at, count)` for each row: index of its first element in the array and in the tensor, and its
  /// number of elements.
  template <class Visitor>
  void for_each_run(Visitor const& visit) {
    auto dim = lengths_.size();
    std::int64_t run = 1;
    // A row extends over the last dimension, and over earlier ones while all later dimensions are whole in both.
    while (dim > 0) {
      --dim;
      run *= end_[dim] - begin_[dim];
      if (end_[dim] - begin_[dim] != lengths_[dim] || stored_.lengths[dim] != lengths_[dim]) break;
    }
    at_ = begin_;
    do visit(place_in_array(), place_in_tensor(), run);
    while (advance(dim));
  }

 private:
  [[nodiscard]] std::int64_t place_in_tensor() const {
    std::int64_t element = 0;
    for (std::size_t dim = 0; dim < lengths_.size(); ++dim) element = element * lengths_[dim] + at_[dim];
    return element;
  }
  [[nodiscard]] std::int64_t place_in_array() const {
    std::int64_t element = 0;
    for (std::size_t dim = 0; dim < lengths_.size(); ++dim) {
      auto const first = stored_.begin.empty() ? 0 : stored_.begin[dim];
      element = element * stored_.lengths[dim] + at_[dim] - stored_.box->begin[dim] + first;
    }
    return element;
  }
  /// Moves to the next row by counting in the dimensions before `dim`. Returns false after the last row.
  bool advance(std::size_t dim) {
    while (dim-- > 0) {
      if (++at_[dim] < end_[dim]) return true;
      at_[dim] = begin_[dim];
    }
    return false;
  }

  using Index = std::array<std::int64_t, Shape::max_rank>;
  std::span<std::int64_t const> lengths_;
  StoredBox stored_;
  Index begin_{};
  Index end_{};
  Index at_{};
  bool any_ = true;
};

}  // namespace crossrank::checkpoint
