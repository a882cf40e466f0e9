#pragma once
#include <span>
#include <string_view>
#include <vector>

#include <crossrank/collective.hpp>

namespace crossrank::test {

/// One rank of a case.
struct ConformanceRank {
  Collective world{};
  ConnectOptions options{};  ///< with which it connected: whoever connects so again gets the same job
};

/// One promise of the SPI and of the collectives on it, kept by every backend for every number of ranks.
struct ConformanceCase {
  std::string_view name;
  void (*body)(ConformanceRank&);
  int min_ranks = 1;         ///< with fewer there is nothing to see
  bool kills_group = false;  ///< the world is dead afterwards and cannot be closed in order
};

/// All of them.
[[nodiscard]] std::vector<ConformanceCase> conformance_cases();
[[nodiscard]] std::span<ConformanceCase const> lifetime_cases();
[[nodiscard]] std::span<ConformanceCase const> data_cases();
[[nodiscard]] std::span<ConformanceCase const> operation_cases();
[[nodiscard]] std::span<ConformanceCase const> reduction_cases();
[[nodiscard]] std::span<ConformanceCase const> element_cases();
[[nodiscard]] std::span<ConformanceCase const> request_cases();
[[nodiscard]] std::span<ConformanceCase const> message_cases();
[[nodiscard]] std::span<ConformanceCase const> disagreement_cases();
[[nodiscard]] std::span<ConformanceCase const> group_cases();

/// Runs a case on this rank, then meets the others once more where the case left the group alive.
void run_conformance_case(ConformanceCase const& test, ConformanceRank rank);
/// The case called `name`; the test fails when there is none.
[[nodiscard]] ConformanceCase const& find_conformance_case(std::string_view name);

/// A case together with a number of ranks, as a parameter of a backend's suite.
struct ConformanceParameter {
  ConformanceCase test{};
  int ranks = 1;
};

/// Every case with each number of ranks that shows something.
[[nodiscard]] std::vector<ConformanceParameter> conformance_parameters(std::vector<int> const& sizes);
[[nodiscard]] std::string parameter_name(ConformanceParameter const& parameter);

}  // namespace crossrank::test
