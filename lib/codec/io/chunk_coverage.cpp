#include "lib/codec/io/chunk_coverage.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

#include "lib/core/text/name_hash.hpp"

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

__extension__ using WideUnsigned = unsigned __int128;
constexpr std::uint64_t prime = (std::uint64_t{1} << 61U) - 1;

/// Returns a random number below `prime` for a coordinate, the same one in each call of this process.
std::uint64_t random_of(std::size_t dim, std::int64_t coordinate) {
  std::array const key{static_cast<std::int64_t>(dim), coordinate};
  return hash_name(std::string_view(reinterpret_cast<char const*>(key.data()), sizeof key)) % prime;
}

/// Returns a number for a box. If boxes cover another box exactly once, their numbers add up to its number modulo
/// `prime`; otherwise they do not, except in one case of 2^57.
///
/// The number is the sum of one random number for each corner, with the sign of the corner: corners in the inside
/// cancel each other. A corner's number is the product of those of its coordinates, which gives the product below.
std::uint64_t number_of(std::span<std::int64_t const> begin, std::span<std::int64_t const> size) {
  std::uint64_t number = 1;
  for (std::size_t dim = 0; dim < size.size(); ++dim) {
    auto const from = random_of(dim, begin[dim]);
    auto const to = random_of(dim, begin[dim] + size[dim]);
    number = static_cast<std::uint64_t>(WideUnsigned{number} * (prime + to - from) % prime);
  }
  return number;
}

bool overlap(ChunkBox const& a, ChunkBox const& b) {
  for (std::size_t dim = 0; dim < a.size.size(); ++dim) {
    if (a.begin[dim] + a.size[dim] <= b.begin[dim] || b.begin[dim] + b.size[dim] <= a.begin[dim]) return false;
  }
  return true;
}

/// Returns a message that names two boxes that overlap.
std::string find_overlap(std::vector<ChunkBox const*> boxes) {
  // Only boxes that overlap in the first dimension need to be compared.
  std::sort(boxes.begin(), boxes.end(), [](auto const* a, auto const* b) { return a->begin < b->begin; });
  std::size_t comparisons = 10'000'000;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    auto const end = boxes[i]->begin[0] + boxes[i]->size[0];
    for (auto j = i + 1; j < boxes.size() && boxes[j]->begin[0] < end; ++j) {
      if (overlap(*boxes[i], *boxes[j]))
        return "the pieces " + text_of(*boxes[i]) + " and " + text_of(*boxes[j]) + " overlap";
      // A file that names a million pieces must not take hours.
      if (--comparisons == 0) return "two of the " + std::to_string(boxes.size()) + " pieces overlap";
    }
  }
  return "the pieces overlap";
}

}  // namespace

std::optional<std::string> find_coverage_error(std::span<std::int64_t const> lengths, std::span<ChunkBox const> boxes) {
  std::vector<ChunkBox const*> filled;
  std::int64_t covered = 0;
  std::uint64_t sum = 0;
  auto const total = volume(lengths);
  for (auto const& box : boxes) {
    if (!is_inside(lengths, box)) return "the piece " + text_of(box) + " lies outside the tensor";
    auto const count = volume(box.size);
    if (count == 0) continue;
    // Each count is at most the total, so the sum is too large before it could overflow.
    if (count > total - covered) return "the pieces have more elements than the tensor";
    covered += count;
    sum = (sum + number_of(box.begin, box.size)) % prime;
    filled.push_back(&box);
  }
  if (covered != total) {
    return "the pieces cover " + std::to_string(covered) + " of " + std::to_string(total) + " elements";
  }
  if (total == 0) return std::nullopt;
  std::vector<std::int64_t> const origin(lengths.size(), 0);
  if (sum != number_of(origin, lengths)) return find_overlap(std::move(filled));
  return std::nullopt;
}

}  // namespace crossrank::codec
