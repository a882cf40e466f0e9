#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <crossrank/error.hpp>

namespace crossrank::algorithms {

/// Two ranks that disagree about the bytes that go from one to the other.
struct ExchangeMismatch {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint64_t sent = 0;      ///< bytes that `from` sends
  std::uint64_t expected = 0;  ///< bytes that `to` expects

  /// Returns the mismatch in one sentence.
  [[nodiscard]] std::string text() const;
  /// Returns the error for it. `info` names the operation and the group.
  [[nodiscard]] MismatchError error(ErrorInfo info) const;
};

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
  /// Returns the first pair of ranks that disagrees, or nothing.
  [[nodiscard]] std::optional<ExchangeMismatch> first_mismatch() const;

 private:
  std::size_t ranks_;
  std::vector<std::uint64_t> cells_;
};

}  // namespace crossrank::algorithms
