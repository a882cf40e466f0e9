#include "lib/codec/io/strided_read.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "lib/codec/io/linear_boxes.hpp"
#include "lib/core/as_size.hpp"
#include "lib/tensor/copy_memory.hpp"

namespace crossrank::codec {
namespace {

/// One dimension of a box: number of entries, and their stride in the storage and in the result, in elements.
struct Axis {
  std::int64_t count = 1;
  std::int64_t in = 0;
  std::int64_t out = 0;
};

/// A box of the tensor as nested loops. Outer loops have larger strides in the storage.
struct Loops {
  std::array<Axis, Shape::max_rank> axes{};
  std::size_t depth = 0;
  std::int64_t in = 0;   ///< first element in the storage
  std::int64_t out = 0;  ///< first element in the result
};

Loops plan(StridedView const& view, Box const& box, std::int64_t first) {
  Loops loops;
  loops.out = -first;
  std::int64_t row = 1;
  for (auto dim = view.lengths.size(); dim-- > 0; row *= view.lengths[dim]) {
    loops.in += box.begin[dim] * view.strides[dim];
    loops.out += box.begin[dim] * row;
    if (box.size[dim] > 1) loops.axes[loops.depth++] = {box.size[dim], view.strides[dim], row};
  }
  if (loops.depth == 0) loops.axes[loops.depth++] = {1, 1, 1};
  std::sort(loops.axes.begin(), loops.axes.begin() + static_cast<std::ptrdiff_t>(loops.depth),
            [](Axis const& a, Axis const& b) { return a.in != b.in ? a.in > b.in : a.out > b.out; });
  return loops;
}

void copy_element(std::byte* to, std::byte const* from, std::size_t element_bytes) noexcept {
  switch (element_bytes) {
    case 1: *to = *from; break;
    case 2: std::memcpy(to, from, 2); break;
    case 4: std::memcpy(to, from, 4); break;
    case 8: std::memcpy(to, from, 8); break;
    default: copy_memory(to, from, element_bytes);
  }
}

/// Runs the innermost loop.
void copy_axis(ReadWindow& storage, StridedView const& view, Axis axis, std::int64_t in, std::byte* out) {
  auto const element_bytes = view.element_bytes;
  auto const at = [&](std::int64_t element) {
    return view.first + static_cast<std::uint64_t>(element) * static_cast<std::uint64_t>(element_bytes);
  };
  if (axis.in == 1 && axis.out == 1) {
    auto const max = static_cast<std::int64_t>(ReadWindow::block_bytes / element_bytes);
    for (; axis.count > 0; axis.count -= max, in += max) {
      auto const bytes = as_size(std::min(axis.count, max)) * element_bytes;
      storage.copy(at(in), {out, bytes});
      out += bytes;
    }
    return;
  }
  auto const step = static_cast<std::ptrdiff_t>(axis.out) * static_cast<std::ptrdiff_t>(element_bytes);
  for (std::int64_t i = 0; i < axis.count; ++i)
    copy_element(out + i * step, storage.view(at(in + i * axis.in), element_bytes), element_bytes);
}

void copy_loops(ReadWindow& storage, StridedView const& view, Loops const& loops, std::size_t depth, std::int64_t in,
                std::int64_t out, std::byte* to) {
  auto const& axis = loops.axes[depth];
  if (depth + 1 == loops.depth) {
    copy_axis(storage, view, axis, in, to + out * static_cast<std::int64_t>(view.element_bytes));
    return;
  }
  for (std::int64_t i = 0; i < axis.count; ++i)
    copy_loops(storage, view, loops, depth + 1, in + i * axis.in, out + i * axis.out, to);
}

void read_elements(ReadWindow& storage, StridedView const& view, std::int64_t first, std::int64_t last, std::byte* to) {
  for_each_box(view.lengths, first, last, [&](Box const& box) {
    auto const loops = plan(view, box, first);
    copy_loops(storage, view, loops, 0, loops.in, loops.out, to);
  });
}

}  // namespace

std::int64_t StridedView::numel() const noexcept {
  std::int64_t count = 1;
  for (auto const length : lengths) count *= length;
  return count;
}

bool StridedView::is_dense() const noexcept {
  std::int64_t row = 1;
  for (auto dim = lengths.size(); dim-- > 0; row *= lengths[dim]) {
    if (lengths[dim] > 1 && strides[dim] != row) return false;
  }
  return true;
}

void read_strided(ReadWindow& storage, StridedView const& view, std::uint64_t offset, std::span<std::byte> out) {
  if (out.empty()) return;
  if (view.is_dense()) {
    for (std::size_t done = 0; done < out.size();) {
      auto const part = out.subspan(done, std::min(ReadWindow::block_bytes, out.size() - done));
      storage.copy(view.first + offset + done, part);
      done += part.size();
    }
    return;
  }
  auto const element_bytes = static_cast<std::uint64_t>(view.element_bytes);
  auto const first = static_cast<std::int64_t>(offset / element_bytes);
  auto const last = static_cast<std::int64_t>((offset + out.size() + element_bytes - 1) / element_bytes);
  if (offset % element_bytes == 0 && out.size() % view.element_bytes == 0)
    return read_elements(storage, view, first, last, out.data());
  // The range begins or ends inside an element: read whole elements.
  std::vector<std::byte> whole(as_size(last - first) * view.element_bytes);
  read_elements(storage, view, first, last, whole.data());
  copy_memory(out.data(), whole.data() + offset % element_bytes, out.size());
}

}  // namespace crossrank::codec
