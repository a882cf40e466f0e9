#pragma once
#include <span>
#include <string_view>
#include <vector>

#include <crossrank/collective.hpp>

namespace crossrank::test {

/// One rank that runs a case.
struct ConformanceRank {
  Collective world{};
  ConnectOptions options{};  ///< its connect options; connecting again with them returns the same job
};

/// Whether a case also holds for tensors on GPUs. Such a case makes its tensors by `on_device`.
enum class OnDevices {
  no,  ///< the case is not about tensors
  yes,
  compared,  ///< on a device transport only where the ranks wait for each other to compare the call
  staged,  ///< only where they go through host memory: NCCL adds in an order of its own, and calls of two groups on one
           ///< stream run one after the other
};

/// One property of the SPI and its collectives that every backend has for every number of ranks.
struct ConformanceCase {
  std::string_view name;
  void (*body)(ConformanceRank&);
  int min_ranks = 1;         ///< smallest number of ranks for which the case makes sense
  bool kills_group = false;  ///< the case ends the group, so it cannot be closed in order
  OnDevices on_devices = OnDevices::no;
};

/// Returns all cases.
[[nodiscard]] std::vector<ConformanceCase> conformance_cases();
[[nodiscard]] std::span<ConformanceCase const> lifetime_cases();
[[nodiscard]] std::span<ConformanceCase const> data_cases();
[[nodiscard]] std::span<ConformanceCase const> operation_cases();
[[nodiscard]] std::span<ConformanceCase const> reduction_cases();
[[nodiscard]] std::span<ConformanceCase const> element_cases();
[[nodiscard]] std::span<ConformanceCase const> request_cases();
[[nodiscard]] std::span<ConformanceCase const> message_cases();
[[nodiscard]] std::span<ConformanceCase const> any_source_cases();
[[nodiscard]] std::span<ConformanceCase const> disagreement_cases();
[[nodiscard]] std::span<ConformanceCase const> group_cases();

/// Runs a case on this rank. If the case leaves the group usable, a barrier follows.
void run_conformance_case(ConformanceCase const& test, ConformanceRank rank);
/// Returns the case with this name. Fails the test if there is none.
[[nodiscard]] ConformanceCase const& find_conformance_case(std::string_view name);

/// A case with a number of ranks: the parameter of a backend's suite.
struct ConformanceParameter {
  ConformanceCase test{};
  int ranks = 1;
};

/// Combines every case with each number of ranks for which it makes sense.
[[nodiscard]] std::vector<ConformanceParameter> conformance_parameters(std::vector<int> const& sizes);
[[nodiscard]] std::string parameter_name(ConformanceParameter const& parameter);

}  // namespace crossrank::test
