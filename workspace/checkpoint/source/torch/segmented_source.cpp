#include "workspace/checkpoint/source/torch/segmented_source.hpp"

#include <algorithm>
#include <utility>

namespace crossrank::checkpoint {

SegmentedSource::SegmentedSource(std::string name, std::vector<SegmentedTensor> tensors, Json attributes,
                                 std::uint64_t bytes_on_disk)
    : DescribedSource(std::move(name), std::move(attributes), bytes_on_disk) {
  for (auto& tensor : tensors) {
    tensors_.push_back(std::move(tensor.tensor));
    segments_.push_back(std::move(tensor.segments));
  }
}

std::vector<std::string> SegmentedSource::files_of(std::size_t tensor) const {
  std::vector<std::string> files;
  for (auto const& segment : segments_[tensor]) {
    auto const& file = segment.archive->name();
    if (std::find(files.begin(), files.end(), file) == files.end()) files.push_back(file);
  }
  return files;
}

void SegmentedSource::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  require_range(tensor, offset, out.size());
  if (out.empty()) return;
  for (auto const& segment : segments_[tensor]) {
    if (offset >= segment.bytes) {
      offset -= segment.bytes;
      continue;
    }
    auto const part = out.first(std::min<std::uint64_t>(out.size(), segment.bytes - offset));
    segment.archive->read(*segment.tensor, segment.offset + offset, part);
    out = out.subspan(part.size());
    offset = 0;
    if (out.empty()) return;
  }
}

}  // namespace crossrank::checkpoint
