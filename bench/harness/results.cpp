#include "bench/harness/results.hpp"

#include <algorithm>
#include <fstream>
#include <stdexcept>

namespace crossrank::bench {
namespace {

using Row = nlohmann::ordered_json;

Workload workload_of(Row const& row) {
  return {.path = row.at("path"),
          .who = row.at("who"),
          .variant = row.at("variant"),
          .ranks = row.at("ranks"),
          .bytes = row.at("bytes"),
          .reads = row.at("reads")};
}

void merge(Launch& launch, Row const& row) {
  launch.faults = std::max(launch.faults, row.value("faults", 0.0));
  launch.switches = std::max(launch.switches, row.value("switches", 0.0));
  launch.system_calls = std::max(launch.system_calls, row.value("system_calls", 0.0));
  launch.copied += row.value("copied", 0.0);
  launch.payload += row.value("payload", 0.0);
  launch.peak_bytes = std::max(launch.peak_bytes, row.value("peak_bytes", 0.0));
  launch.processor_us += row.value("processor_us", 0.0);
  launch.system_call_source = row.value("system_call_source", launch.system_call_source);
  launch.failed = row.value("failed", launch.failed);
  bool const of_slowest = row.at("path") == "collectives";
  if (of_slowest ? row.value("median_us", 0.0) <= launch.median_us : row.at("rank") != 0) return;
  launch.min_us = row.value("min_us", 0.0);
  launch.median_us = row.value("median_us", 0.0);
  launch.p99_us = row.value("p99_us", 0.0);
}

}  // namespace

Results load(std::vector<std::string> const& files, nlohmann::ordered_json& rows) {
  Results results;
  for (auto const& file : files) {
    std::map<Workload, Launch> launch;
    std::ifstream in(file);
    if (!in) throw std::runtime_error("cannot read " + file);
    for (std::string line; std::getline(in, line);) {
      auto const row = Row::parse(line);
      merge(launch[workload_of(row)], row);
      rows.push_back(row);
    }
    for (auto const& [workload, figures] : launch) results[workload].push_back(figures);
  }
  return results;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  auto const middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2.0;
}

double typical(std::vector<Launch> const& launches, double Launch::*member) {
  std::vector<double> values;
  for (auto const& launch : launches) values.push_back(launch.*member);
  return median(std::move(values));
}

double paired_ratio(std::vector<Launch> const& peer, std::vector<Launch> const& ours) {
  std::vector<double> ratios;
  // If the peer ran in fewer launches, compare it with our launches of the same rounds, which are the first ones.
  for (std::size_t i = 0; i < std::min(peer.size(), ours.size()); ++i)
    ratios.push_back(peer[i].median_us / ours[i].median_us);
  return median(std::move(ratios));
}

}  // namespace crossrank::bench
