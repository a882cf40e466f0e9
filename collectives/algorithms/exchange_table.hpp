#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace crossrank::algorithms {

/// The bytes that each rank sends to each other one in an exchange, as the ranks report them.
class ExchangeTable {
 public:
  explicit ExchangeTable(std::size_t ranks) : ranks_(ranks), cells_(ranks * row_cells(ranks)) {}

  /// Returns one rank's row: the bytes that it sends to each rank, then those that it expects from each.
  [[nodiscard]] static std::vector<std::uint64_t> row(std::span<std::size_t const> sends,
                                                      std::span<std::size_t const> expects);
  [[nodiscard]] static std::size_t row_cells(std::size_t ranks) noexcept { return 2 * ranks; }
  [[nodiscard]] static std::size_t row_bytes(std::size_t ranks) noexcept {
    return row_cells(ranks) * sizeof(std::uint64_t);
  }
  /// The rows of all ranks, one after the other.
  [[nodiscard]] std::span<std::byte> bytes() noexcept { return std::as_writable_bytes(std::span(cells_)); }

  [[nodiscard]] std::size_t sends(std::size_t from, std::size_t to) const {
    return cells_[from * row_cells(ranks_) + to];
  }
  [[nodiscard]] std::size_t expects(std::size_t to, std::size_t from) const {
    return cells_[to * row_cells(ranks_) + ranks_ + from];
  }
  /// Throws a `MismatchError` that names the first pair of ranks that disagrees, the same pair on all ranks.
  void require_agreement(char const* operation, std::string const& group, int rank) const;

 private:
  std::size_t ranks_;
  std::vector<std::uint64_t> cells_;
};

}  // namespace crossrank::algorithms
