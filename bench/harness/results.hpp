#pragma once
#include <compare>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace crossrank::bench {

/// What was measured: one workload of one contestant.
struct Workload {
  std::string path{};
  std::string who{};
  std::string variant{};
  int ranks = 0;
  std::size_t bytes = 0;
  bool reads = false;

  auto operator<=>(Workload const&) const = default;  // NOLINT(modernize-use-nullptr): it compares with no pointer
};

/// One launch of it. Times are those of the first rank, who consumes, of collectives those of the slowest rank; costs
/// per call the highest of any rank, but for the copied bytes, which are those of all ranks together.
struct Launch {
  double min_us = 0.0;
  double median_us = 0.0;
  double p99_us = 0.0;
  double faults = 0.0;
  double switches = 0.0;
  double system_calls = 0.0;
  double copied = 0.0;
  double payload = 0.0;       ///< bytes that may be copied once, all ranks together
  double peak_bytes = 0.0;    ///< memory of the largest process; 0 where it was not measured
  double processor_us = 0.0;  ///< of all processes of a command together
  std::string system_call_source{};
  std::string failed{};  ///< why there is no figure
};

/// All launches, in the order in which they ran.
using Results = std::map<Workload, std::vector<Launch>>;

/// Reads result files; each is one launch of one program, with one JSON object on each line.
[[nodiscard]] Results load(std::vector<std::string> const& files, nlohmann::ordered_json& rows);

[[nodiscard]] double median(std::vector<double> values);
/// The median over launches of what `member` says.
[[nodiscard]] double typical(std::vector<Launch> const& launches, double Launch::*member);
/// How many times faster `ours` is: the median of the launches' ratios, each launch against the peer's beside it.
[[nodiscard]] double paired_ratio(std::vector<Launch> const& peer, std::vector<Launch> const& ours);

}  // namespace crossrank::bench
