#include "workspace/checkpoint/source/chunked_source.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/io/linear_boxes.hpp"
#include "lib/codec/io/read_window.hpp"
#include "lib/tensor/copy_memory.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

/// The smallest number of elements that fills whole bytes: two 4-bit elements fill one byte, four 6-bit elements fill
/// three.
struct Group {
  std::int64_t elements = 1;
  std::size_t bytes = 1;
};

Group group_of(Dtype dtype) {
  auto const bits = bits_of(dtype);
  if (bits == 4) return {2, 1};
  if (bits == 6) return {4, 3};
  return {1, bits / 8};
}

/// The intersection of a box of the range with a piece, as rows that are contiguous in both.
class Intersection {
 public:
  /// Check `intersects()` before use.
  Intersection(std::span<std::int64_t const> lengths, codec::Box const& range, codec::ChunkBox const& piece)
      : lengths_(lengths), chunk_(piece) {
    for (std::size_t dim = 0; dim < lengths.size(); ++dim) {
      begin_[dim] = std::max(range.begin[dim], piece.begin[dim]);
      end_[dim] = std::min(range.begin[dim] + range.size[dim], piece.begin[dim] + piece.size[dim]);
      intersects_ = intersects_ && begin_[dim] < end_[dim];
    }
  }
  [[nodiscard]] bool intersects() const noexcept { return intersects_; }

  /// Calls `copy(in, out, count)` for each row: index of its first element in the piece and in the tensor, and its
  /// number of elements.
  template <class Copy>
  void for_each_run(Copy const& copy) {
    auto dim = lengths_.size();
    std::int64_t run = 1;
    // A row extends over the last dimension, and over earlier ones while all later dimensions are whole in both.
    while (dim > 0) {
      --dim;
      run *= end_[dim] - begin_[dim];
      if (end_[dim] - begin_[dim] != lengths_[dim] || chunk_.size[dim] != lengths_[dim]) break;
    }
    at_ = begin_;
    do copy(position(chunk_.size, &chunk_.begin), position(lengths_, nullptr), run);
    while (advance(dim));
  }

 private:
  [[nodiscard]] std::int64_t position(std::span<std::int64_t const> lengths,
                                      std::vector<std::int64_t> const* origin) const {
    std::int64_t element = 0;
    for (std::size_t dim = 0; dim < lengths.size(); ++dim)
      element = element * lengths[dim] + at_[dim] - (origin == nullptr ? 0 : (*origin)[dim]);
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
  codec::ChunkBox const& chunk_;
  Index begin_{};
  Index end_{};
  Index at_{};
  bool intersects_ = true;
};

}  // namespace

ChunkedSource::ChunkedSource(std::string name, std::vector<ChunkedTensor> tensors, Json attributes,
                             std::uint64_t bytes_on_disk)
    : DescribedSource(std::move(name), std::move(attributes), bytes_on_disk) {
  for (auto& tensor : tensors) {
    tensors_.push_back(tensor.tensor);
    chunks_.push_back(chunks_of(std::move(tensor), name_));
  }
}

std::vector<std::string> ChunkedSource::files_of(std::size_t tensor) const {
  std::vector<std::string> files;
  for (auto const& data : chunks_[tensor].data) {
    if (std::find(files.begin(), files.end(), data->file()) == files.end()) files.push_back(data->file());
  }
  return files;
}

ChunkedSource::Chunks ChunkedSource::chunks_of(ChunkedTensor tensor, std::string const& name) {
  auto const group = group_of(tensor.tensor.dtype);
  auto const& shape = tensor.tensor.shape;
  Chunks pieces{group.bytes, {shape.begin(), shape.end()}, std::move(tensor.boxes), std::move(tensor.data)};
  if (group.elements == 1) return pieces;
  auto const divide = [&](std::int64_t& length) {
    if (length % group.elements != 0) {
      throw FormatError({.operation = read_operation,
                         .message = "a piece of \"" + tensor.tensor.name + "\" begins or ends inside a byte",
                         .resource = name,
                         .section = "chunks"});
    }
    length /= group.elements;
  };
  if (pieces.lengths.empty()) return pieces;
  divide(pieces.lengths.back());
  for (auto& box : pieces.boxes) {
    divide(box.begin.back());
    divide(box.size.back());
  }
  return pieces;
}

void ChunkedSource::read_units(Chunks const& pieces, std::int64_t first, std::int64_t last, std::byte* out) {
  auto const unit = pieces.unit;
  for (std::size_t i = 0; i < pieces.boxes.size(); ++i) {
    std::shared_ptr<codec::ByteSource const> source;
    std::optional<codec::ReadWindow> window;
    codec::for_each_box(pieces.lengths, first, last, [&](codec::Box const& box) {
      Intersection common(pieces.lengths, box, pieces.boxes[i]);
      if (!common.intersects()) return;
      if (!source) {
        source = pieces.data[i]->open();
        window.emplace(*source, 0, source->size());
      }
      common.for_each_run([&](std::int64_t in, std::int64_t at, std::int64_t count) {
        auto const bytes = static_cast<std::size_t>(count) * unit;
        auto* const to = out + static_cast<std::size_t>(at - first) * unit;
        auto const from = static_cast<std::uint64_t>(in) * unit;
        for (std::size_t done = 0; done < bytes;) {
          auto const part = std::min(bytes - done, codec::ReadWindow::block_bytes);
          window->copy(from + done, {to + done, part});
          done += part;
        }
      });
    });
  }
}

void ChunkedSource::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  auto const size = tensor < tensors_.size() ? dense_bytes(tensors_[tensor].shape, tensors_[tensor].dtype) : 0;
  if (offset > size || out.size() > size - offset) {
    throw UsageError(
        {.operation = read_operation,
         .message = "the byte range is outside the tensor",
         .got = std::to_string(out.size()) + " from " + std::to_string(offset) + " of tensor " + std::to_string(tensor),
         .resource = name_});
  }
  if (out.empty()) return;
  auto const& pieces = chunks_[tensor];
  auto const unit = static_cast<std::uint64_t>(pieces.unit);
  auto const first = static_cast<std::int64_t>(offset / unit);
  auto const last = static_cast<std::int64_t>((offset + out.size() + unit - 1) / unit);
  if (offset % unit == 0 && out.size() % pieces.unit == 0) return read_units(pieces, first, last, out.data());
  std::vector<std::byte> whole(static_cast<std::size_t>(last - first) * pieces.unit);
  read_units(pieces, first, last, whole.data());
  copy_memory(out.data(), whole.data() + offset % unit, out.size());
}

}  // namespace crossrank::checkpoint
