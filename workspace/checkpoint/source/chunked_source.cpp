#include "workspace/checkpoint/source/chunked_source.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/io/linear_boxes.hpp"
#include "lib/codec/io/read_window.hpp"
#include "lib/core/as_size.hpp"
#include "lib/tensor/copy_memory.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/source/box_runs.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {

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
  auto const group = element_group(tensor.tensor.dtype);
  auto const& shape = tensor.tensor.shape;
  Chunks pieces{group.bytes, {shape.begin(), shape.end()}, std::move(tensor.boxes), std::move(tensor.data)};
  if (group.elements == 1) return pieces;
  auto const divide = [&](std::int64_t& length) {
    if (length % group.elements != 0) {
      throw FormatError({.operation = read_operation,
                         .message = "a piece of \"" + tensor.tensor.name + "\" begins or ends inside a byte",
                         .resource = name,
                         .section = to_string(ErrorSection::chunks)});
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
      BoxRuns common(pieces.lengths, box, {.box = &pieces.boxes[i], .lengths = pieces.boxes[i].size});
      if (!common.any()) return;
      if (!source) {
        source = pieces.data[i]->open();
        window.emplace(*source, 0, source->size());
      }
      common.for_each_run([&](std::int64_t in, std::int64_t at, std::int64_t count) {
        auto const bytes = as_size(count) * unit;
        auto* const to = out + as_size(at - first) * unit;
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
  require_range(tensor, offset, out.size());
  if (out.empty()) return;
  auto const& pieces = chunks_[tensor];
  auto const unit = static_cast<std::uint64_t>(pieces.unit);
  auto const first = static_cast<std::int64_t>(offset / unit);
  auto const last = static_cast<std::int64_t>((offset + out.size() + unit - 1) / unit);
  if (offset % unit == 0 && out.size() % pieces.unit == 0) return read_units(pieces, first, last, out.data());
  std::vector<std::byte> whole(as_size(last - first) * pieces.unit);
  read_units(pieces, first, last, whole.data());
  copy_memory(out.data(), whole.data() + offset % unit, out.size());
}

}  // namespace crossrank::checkpoint
