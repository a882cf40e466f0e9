#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <crossrank/tensor/shape.hpp>

namespace crossrank::codec {

/// Part of a dense tensor: in each dimension `size` entries from `begin` on.
struct Box {
  std::array<std::int64_t, Shape::max_rank> begin{};
  std::array<std::int64_t, Shape::max_rank> size{};
};

namespace detail {

template <class Visitor>
struct BoxWalk {
  std::span<std::int64_t const> lengths;
  Visitor& visit;
  Box box{};

  void emit(std::size_t dim, std::int64_t begin, std::int64_t size) {
    box.begin[dim] = begin;
    box.size[dim] = size;
    for (auto i = dim + 1; i < lengths.size(); ++i) {
      box.begin[i] = 0;
      box.size[i] = lengths[i];
    }
    visit(static_cast<Box const&>(box));
  }

  /// Visits elements `first` to `last` of the subtensor with fixed entries in the dimensions before `dim`.
  void walk(std::size_t dim, std::int64_t first, std::int64_t last) {
    if (first == last) return;
    std::int64_t inner = 1;
    for (auto i = dim + 1; i < lengths.size(); ++i) inner *= lengths[i];
    auto const descend = [&](std::int64_t row, std::int64_t from, std::int64_t to) {
      box.begin[dim] = row;
      box.size[dim] = 1;
      walk(dim + 1, from, to);
    };
    auto row = first / inner;
    if (first % inner != 0) {
      auto const end = std::min(inner, last - row * inner);
      descend(row, first % inner, end);
      ++row;
      if (row * inner >= last) return;
    }
    if (last / inner > row) emit(dim, row, last / inner - row);
    if (last % inner != 0) descend(last / inner, 0, last % inner);
  }
};

}  // namespace detail

/// Calls `visit` with boxes that together are elements `first` to `last` of a dense row-major tensor, in order. There
/// are at most two boxes for each dimension. The product of the lengths must fit in 63 bits, and no length may be 0.
template <class Visitor>
void for_each_box(std::span<std::int64_t const> lengths, std::int64_t first, std::int64_t last, Visitor&& visit) {
  detail::BoxWalk<Visitor> walk{lengths, visit};
  if (!lengths.empty()) {
    walk.walk(0, first, last);
  } else if (first < last) {
    visit(static_cast<Box const&>(walk.box));
  }
}

}  // namespace crossrank::codec
