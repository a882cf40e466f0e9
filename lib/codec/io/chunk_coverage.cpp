#include "lib/codec/io/chunk_coverage.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace crossrank::codec {
namespace {

std::string text_of(ChunkBox const& box) {
  std::string out;
  for (std::size_t dim = 0; dim < box.size.size(); ++dim) {
    if (dim > 0) out += ", ";
    // The numbers of a box outside the tensor may be arbitrary, so the sum may overflow.
    auto end = std::numeric_limits<std::int64_t>::max();
    if (std::int64_t sum = 0; !__builtin_add_overflow(box.begin[dim], box.size[dim], &sum)) end = sum;
    out += std::to_string(box.begin[dim]) + ":" + std::to_string(end);
  }
  return '[' + out + ']';
}

bool is_inside(std::span<std::int64_t const> lengths, ChunkBox const& box) {
  if (box.begin.size() != lengths.size() || box.size.size() != lengths.size()) return false;
  for (std::size_t dim = 0; dim < lengths.size(); ++dim) {
    if (box.begin[dim] < 0 || box.size[dim] < 0 || box.begin[dim] > lengths[dim] ||
        box.size[dim] > lengths[dim] - box.begin[dim])
      return false;
  }
  return true;
}

/// Returns the number of elements of a box inside a tensor whose number of elements fits in 63 bits.
std::int64_t volume(std::span<std::int64_t const> lengths) {
  std::int64_t count = 1;
  for (auto const length : lengths) {
    if (length == 0) return 0;
    count *= length;
  }
  return count;
}

bool overlap(ChunkBox const& a, ChunkBox const& b) {
  for (std::size_t dim = 0; dim < a.size.size(); ++dim) {
    if (a.begin[dim] + a.size[dim] <= b.begin[dim] || b.begin[dim] + b.size[dim] <= a.begin[dim]) return false;
  }
  return true;
}

}  // namespace

std::optional<std::string> find_coverage_error(std::span<std::int64_t const> lengths, std::span<ChunkBox const> boxes) {
  std::vector<ChunkBox const*> filled;
  std::int64_t covered = 0;
  auto const total = volume(lengths);
  for (auto const& box : boxes) {
    if (!is_inside(lengths, box)) return "the piece " + text_of(box) + " lies outside the tensor";
    auto const count = volume(box.size);
    if (count == 0) continue;
    // Each count is at most the total, so the sum is too large before it could overflow.
    if (count > total - covered) return "the pieces have more elements than the tensor";
    covered += count;
    filled.push_back(&box);
  }
  if (covered != total) {
    return "the pieces cover " + std::to_string(covered) + " of " + std::to_string(total) + " elements";
  }
  if (lengths.empty()) return std::nullopt;
  // Only boxes that overlap in the first dimension need to be compared.
  std::sort(filled.begin(), filled.end(), [](auto const* a, auto const* b) { return a->begin < b->begin; });
  for (std::size_t i = 0; i < filled.size(); ++i) {
    auto const end = filled[i]->begin[0] + filled[i]->size[0];
    for (auto j = i + 1; j < filled.size() && filled[j]->begin[0] < end; ++j) {
      if (overlap(*filled[i], *filled[j]))
        return "the pieces " + text_of(*filled[i]) + " and " + text_of(*filled[j]) + " overlap";
    }
  }
  return std::nullopt;
}

}  // namespace crossrank::codec
