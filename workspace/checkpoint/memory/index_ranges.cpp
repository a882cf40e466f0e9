#include "workspace/checkpoint/memory/index_ranges.hpp"

#include <algorithm>

namespace crossrank::checkpoint {
namespace {

/// Returns entries `[first, last)` of the ranges, counted over all of them.
void add_entries(IndexRanges const& ranges, std::int64_t first, std::int64_t last, IndexRanges& out) {
  std::int64_t at = 0;
  for (auto const& range : ranges) {
    auto const begin = std::max(first, at);
    auto const end = std::min(last, at + range.length);
    if (begin < end) {
      auto const place = range.begin + begin - at;
      bool const adjacent = !out.empty() && out.back().begin + out.back().length == place;
      if (adjacent) {
        out.back().length += end - begin;
      } else {
        out.push_back({place, end - begin});
      }
    }
    at += range.length;
  }
}

void add_chunk(IndexRanges const& ranges, MeshPlace at, IndexRanges& out) {
  auto const length = length_of(ranges);
  auto const chunk = length / at.size + (length % at.size == 0 ? 0 : 1);
  add_entries(ranges, at.coordinate * chunk, (at.coordinate + 1) * chunk, out);
}

IndexRanges chunk_of(IndexRanges const& ranges, MeshPlace at) {
  IndexRanges out;
  add_chunk(ranges, at, out);
  return out;
}

}  // namespace

std::int64_t length_of(IndexRanges const& ranges) noexcept {
  std::int64_t length = 0;
  for (auto const& range : ranges) length += range.length;
  return length;
}

IndexRanges strided_chunk_of(IndexRanges const& ranges, std::int64_t split_factor, MeshPlace at) {
  IndexRanges out;
  auto const parts = std::min(split_factor, length_of(ranges));  // further parts are empty
  for (std::int64_t part = 0; part < parts; ++part) add_chunk(chunk_of(ranges, {part, split_factor}), at, out);
  return out;
}

}  // namespace crossrank::checkpoint
