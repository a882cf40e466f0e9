#pragma once
#include <cstddef>
#include <initializer_list>
#include <span>
#include <vector>

namespace crossrank {

/// A view of a list of ranks. Converts from `{0, 2}`, vectors and spans; valid as long as the list.
class RankSpan {
 public:
  /// Views a braced list; valid to the end of the full expression.
  RankSpan(std::initializer_list<int> ranks) noexcept : ranks_(ranks.begin(), ranks.size()) {}
  // NOLINTBEGIN(google-explicit-constructor): lets a call take ranks in any of these forms
  /// Views a vector.
  RankSpan(std::vector<int> const& ranks) noexcept : ranks_(ranks) {}
  /// Views a span.
  RankSpan(std::span<int const> ranks) noexcept : ranks_(ranks) {}
  // NOLINTEND(google-explicit-constructor)

  /// Returns the ranks as a span.
  [[nodiscard]] std::span<int const> span() const noexcept { return ranks_; }
  /// Returns the number of ranks.
  [[nodiscard]] std::size_t size() const noexcept { return ranks_.size(); }
  /// Returns whether the list is empty.
  [[nodiscard]] bool empty() const noexcept { return ranks_.empty(); }
  /// Returns the rank at `index`, which is below `size()`.
  [[nodiscard]] int operator[](std::size_t index) const noexcept { return ranks_[index]; }
  /// Returns an iterator to the first rank.
  [[nodiscard]] auto begin() const noexcept { return ranks_.begin(); }
  /// Returns an iterator past the last rank.
  [[nodiscard]] auto end() const noexcept { return ranks_.end(); }

 private:
  std::span<int const> ranks_;
};

}  // namespace crossrank
