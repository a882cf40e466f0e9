#include "collectives/algorithms/exchange_table.hpp"

#include <crossrank/error.hpp>

namespace crossrank::algorithms {

std::vector<std::uint64_t> ExchangeTable::row(std::span<std::size_t const> sends,
                                              std::span<std::size_t const> expects) {
  std::vector<std::uint64_t> row(sends.begin(), sends.end());
  row.insert(row.end(), expects.begin(), expects.end());
  return row;
}

void ExchangeTable::require_agreement(char const* operation, std::string const& group, int rank) const {
  for (std::size_t from = 0; from < ranks_; ++from) {
    for (std::size_t to = 0; to < ranks_; ++to) {
      if (sends(from, to) == expects(to, from)) continue;
      throw MismatchError({.operation = operation,
                           .message = "rank " + std::to_string(from) + " sends a different number of bytes than rank " +
                                      std::to_string(to) + " expects from it",
                           .expected = std::to_string(expects(to, from)),
                           .got = std::to_string(sends(from, to)),
                           .group = group,
                           .rank = rank,
                           .world_size = static_cast<int>(ranks_),
                           .failed_ranks = {static_cast<int>(from), static_cast<int>(to)}});
    }
  }
}

}  // namespace crossrank::algorithms
