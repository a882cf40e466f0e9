#pragma once
#include <compare>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace crossrank::bench {

/// One workload of one contestant.
struct Workload {
  std::string path{};
  std::string who{};
  std::string variant{};
  int ranks = 0;
  std::size_t bytes = 0;
  bool reads = false;

  auto operator<=>(Workload const&) const =
      default;  // NOLINT(modernize-use-nullptr): there is no pointer in this comparison
};

/// One launch of a workload. Times are those of the first rank, which consumes; for collectives those of the slowest
/// rank. Costs per call are the maximum over ranks, except copied bytes, which are the sum.
struct Launch {
  double min_us = 0.0;
  double median_us = 0.0;
  double p99_us = 0.0;
  double faults = 0.0;
  double switches = 0.0;
  double system_calls = 0.0;
  double copied = 0.0;
  double payload = 0.0;       ///< bytes that may be copied once, sum over all ranks
  double peak_bytes = 0.0;    ///< memory of the largest process; 0 if not measured
  double processor_us = 0.0;  ///< of all processes of a command
  std::string system_call_source{};
  std::string failed{};  ///< why there is no measurement
};

/// All launches of each workload, in order of time.
using Results = std::map<Workload, std::vector<Launch>>;

/// Reads result files. Each holds one launch of one program, with one JSON object per line.
[[nodiscard]] Results load(std::vector<std::string> const& files, nlohmann::ordered_json& rows);

[[nodiscard]] double median(std::vector<double> values);
/// Returns the median of `member` over launches.
[[nodiscard]] double typical(std::vector<Launch> const& launches, double Launch::*member);
/// Returns how many times faster `ours` is: the median of the ratios of corresponding launches.
[[nodiscard]] double paired_ratio(std::vector<Launch> const& peer, std::vector<Launch> const& ours);

}  // namespace crossrank::bench
