#include "lib/codec/torch/zip/zip_layout.hpp"

#include <utility>

namespace crossrank::codec {

ZipLayout::ZipLayout(std::vector<ZipEntry> entries) : entries_(std::move(entries)) {
  std::uint64_t position = 0;
  offsets_.reserve(entries_.size());
  for (auto const& entry : entries_) {
    auto const header = zip_local_header(position, entry).size();
    offsets_.push_back({position, position + header});
    position += header + entry.size + zip_descriptor(entry, 0).size();
  }
  directory_at_ = position;
  file_bytes_ = position + directory(std::vector<std::uint32_t>(entries_.size())).size();
}

std::string ZipLayout::directory(std::span<std::uint32_t const> crcs) const {
  std::string text;
  for (std::size_t i = 0; i < entries_.size(); ++i)
    text += zip_central_header(entries_[i], offsets_[i].header, crcs[i]);
  text += zip_end_records(entries_.size(), text.size(), directory_at_);
  return text;
}

}  // namespace crossrank::codec
