#include "workspace/checkpoint/memory/placed_source.hpp"

#include <algorithm>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/source/box_runs.hpp"

namespace crossrank::checkpoint {

PlacedSource::PlacedSource(std::shared_ptr<ShardSource const> whole, std::vector<PlacedTensor> const& placed)
    : DescribedSource(whole->name()), whole_(std::move(whole)) {
  for (auto const& one : placed) {
    auto const& tensor = whole_->tensors()[one.tensor];
    std::vector<std::int64_t> shape;
    for (auto const& ranges : one.entries) shape.push_back(length_of(ranges));
    tensors_.push_back({tensor.name, tensor.dtype, Shape(shape)});
    pieces_.push_back(piece_of(one));
  }
}

PlacedSource::Piece PlacedSource::piece_of(PlacedTensor const& placed) const {
  auto const& tensor = whole_->tensors()[placed.tensor];
  auto const group = element_group(tensor.dtype);
  auto const dims = placed.entries.size();
  auto const units = [&](std::int64_t elements, std::size_t dim) {
    if (dim + 1 != dims) return elements;
    if (elements % group.elements != 0) {
      throw UsageError({.operation = "reshard",
                        .message = "a piece begins or ends inside a byte",
                        .expected = "multiples of " + std::to_string(group.elements) + " elements",
                        .got = std::to_string(elements),
                        .resource = tensor.name,
                        .hint = "shard the tensor along another dimension"});
    }
    return elements / group.elements;
  };
  Piece piece{.tensor = placed.tensor, .unit = group.bytes};
  for (std::size_t dim = 0; dim < dims; ++dim) {
    piece.whole.push_back(units(tensor.shape[dim], dim));
    piece.lengths.push_back(units(length_of(placed.entries[dim]), dim));
  }
  Box box{.box = {std::vector<std::int64_t>(dims), std::vector<std::int64_t>(dims)},
          .begin = std::vector<std::int64_t>(dims)};
  auto const descend = [&](auto const& self, std::size_t dim) -> void {
    if (dim == dims) {
      piece.boxes.push_back(box);
      return;
    }
    std::int64_t at = 0;
    for (auto const& range : placed.entries[dim]) {
      box.box.begin[dim] = units(at, dim);
      box.box.size[dim] = units(range.length, dim);
      box.begin[dim] = units(range.begin, dim);
      self(self, dim + 1);
      at += range.length;
    }
  };
  descend(descend, 0);
  return piece;
}

void PlacedSource::for_each_input(std::size_t tensor, std::uint64_t offset, std::uint64_t size,
                                  VisitInput const& visit) const {
  auto const& piece = pieces_.at(tensor);
  auto const unit = static_cast<std::uint64_t>(piece.unit);
  auto const first = static_cast<std::int64_t>(offset / unit);
  auto const last = static_cast<std::int64_t>((offset + size + unit - 1) / unit);
  if (first >= last) return;
  for (auto const& box : piece.boxes) {
    codec::for_each_box(piece.lengths, first, last, [&](codec::Box const& range) {
      BoxRuns common(piece.lengths, range, {.box = &box.box, .lengths = piece.whole, .begin = box.begin});
      if (!common.any()) return;
      common.for_each_run([&](std::int64_t in, std::int64_t at, std::int64_t count) {
        auto const to = std::max(offset, static_cast<std::uint64_t>(at) * unit);
        auto const end = std::min(offset + size, static_cast<std::uint64_t>(at + count) * unit);
        auto const from = static_cast<std::uint64_t>(in) * unit + (to - static_cast<std::uint64_t>(at) * unit);
        if (to < end) visit(piece.tensor, from, end - to, to);
      });
    });
  }
}

void PlacedSource::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  for_each_input(tensor, offset, out.size(),
                 [&](std::size_t input, std::uint64_t begin, std::uint64_t bytes, std::uint64_t to) {
                   whole_->read(input, begin, out.subspan(to - offset, bytes));
                 });
}

}  // namespace crossrank::checkpoint
