#include "collectives/algorithms/exchange_table.hpp"

#include <string>
#include <utility>

namespace crossrank::algorithms {

std::string ExchangeMismatch::text() const {
  return "rank " + std::to_string(from) + " sends " + std::to_string(sent) + " bytes to rank " + std::to_string(to) +
         ", which expects " + std::to_string(expected);
}

MismatchError ExchangeMismatch::error(ErrorInfo info) const {
  info.message = text();
  info.expected = std::to_string(expected);
  info.got = std::to_string(sent);
  info.failed_ranks = {static_cast<int>(from), static_cast<int>(to)};
  return MismatchError(std::move(info));
}

std::vector<std::uint64_t> ExchangeTable::row(std::span<std::size_t const> sends,
                                              std::span<std::size_t const> expects) {
  std::vector<std::uint64_t> row(sends.begin(), sends.end());
  row.insert(row.end(), expects.begin(), expects.end());
  return row;
}

std::optional<ExchangeMismatch> ExchangeTable::first_mismatch() const {
  for (std::size_t from = 0; from < ranks_; ++from) {
    for (std::size_t to = 0; to < ranks_; ++to) {
      if (sends(from, to) == expects(to, from)) continue;
      return ExchangeMismatch{.from = from, .to = to, .sent = sends(from, to), .expected = expects(to, from)};
    }
  }
  return {};
}

}  // namespace crossrank::algorithms
