#include "lib/core/text/nearest_name.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace crossrank {
namespace {

constexpr std::size_t longest_name = 4096;  // the edit distance costs the product of both lengths

constexpr std::size_t most_compared = 1'000;

constexpr char lower(char c) noexcept { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Two neighbouring letters in the wrong order count as one edit.
  auto const swapped = [&](std::size_t i, std::size_t j) {
    return i > 0 && j > 0 && lower(a[i]) == lower(b[j - 1]) && lower(a[i - 1]) == lower(b[j]);
  };
  std::vector<std::size_t> before;
  std::vector<std::size_t> above(b.size() + 1);
  std::iota(above.begin(), above.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::vector<std::size_t> row{i + 1};
    for (std::size_t j = 0; j < b.size(); ++j) {
      auto const replaced = above[j] + (lower(a[i]) == lower(b[j]) ? 0 : 1);
      row.push_back(std::min({replaced, row[j] + 1, above[j + 1] + 1}));
      if (swapped(i, j)) row.back() = std::min(row.back(), before[j - 1] + 1);
    }
    before = std::move(above);
    above = std::move(row);
  }
  return above.back();
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view wanted, std::vector<std::string> const& candidates) {
  auto best = std::max<std::size_t>(2, wanted.size() / 3) + 1;
  std::optional<std::string> found;
  for (auto const& candidate : candidates) {
    if (candidate.size() > longest_name || wanted.size() > longest_name) continue;
    auto const distance = edit_distance(wanted, candidate);
    if (distance >= best || 2 * distance > std::max(wanted.size(), candidate.size())) continue;
    best = distance;
    found = candidate;
  }
  return found;
}

std::string did_you_mean(std::string_view wanted, std::vector<std::string> const& candidates) {
  if (candidates.size() > most_compared) return {};
  auto const near = nearest_name(wanted, candidates);
  return near ? "did you mean " + *near + "?" : std::string();
}

}  // namespace crossrank
