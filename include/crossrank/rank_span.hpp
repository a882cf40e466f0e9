#pragma once
#include <cstddef>
#include <initializer_list>
#include <span>
#include <vector>

namespace crossrank {

/// A view of a list of ranks: takes `{0, 2}`, vectors and spans. Valid as long as what it views.
class RankSpan {
 public:
  RankSpan(std::initializer_list<int> ranks) noexcept : ranks_(ranks.begin(), ranks.size()) {}
  // NOLINTBEGIN(google-explicit-constructor): a view, for calls that name ranks in any of these ways
  RankSpan(std::vector<int> const& ranks) noexcept : ranks_(ranks) {}
  RankSpan(std::span<int const> ranks) noexcept : ranks_(ranks) {}
  // NOLINTEND(google-explicit-constructor)

  [[nodiscard]] std::span<int const> span() const noexcept { return ranks_; }
  [[nodiscard]] std::size_t size() const noexcept { return ranks_.size(); }
  [[nodiscard]] bool empty() const noexcept { return ranks_.empty(); }
  [[nodiscard]] int operator[](std::size_t index) const noexcept { return ranks_[index]; }
  [[nodiscard]] auto begin() const noexcept { return ranks_.begin(); }
  [[nodiscard]] auto end() const noexcept { return ranks_.end(); }

 private:
  std::span<int const> ranks_;
};

}  // namespace crossrank
