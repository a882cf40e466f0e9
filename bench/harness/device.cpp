#include "bench/harness/device.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace crossrank::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<char const*, 6> columns = {"kernels", "copies", "copied_bytes", "host_waits", "made", "calls"};

auto key_of(Json const& row) {
  return std::tuple(row.at("variant"), row.at("bytes"), row.at("ranks"), row.value("backend", ""), row.at("who"));
}

/// Joins the rows of all ranks of an operation, in the order of their first ones.
std::vector<Json> operations_of(Json const& rows) {
  std::vector<Json> operations;
  for (auto const& row : rows) {
    if (row.at("path") != "device") continue;
    auto const same = [&row](Json const& one) { return key_of(one) == key_of(row); };
    auto const found = std::find_if(operations.begin(), operations.end(), same);
    if (found == operations.end()) {
      operations.push_back(row);
      continue;
    }
    for (auto const& [name, count] : row.at("counts").items()) {
      auto& most = found->at("counts").at(name);
      most = std::max(most.get<double>(), count.get<double>());
    }
  }
  return operations;
}

/// Returns the names of the counts that are too large.
std::string exceeded(Json const& operation) {
  std::string names;
  for (auto const& [name, limit] : operation.at("limits").items()) {
    if (operation.at("counts").at(name) > limit) names += " " + name;
  }
  return names;
}

Json counts_table(Json const& rows) {
  auto table = Json::array();
  for (auto const& one : operations_of(rows)) {
    if (table.empty()) {
      std::printf(
          "\nOperations on GPU tensors, per call: collective kernels, copies and their bytes, waits of the host, "
          "objects made, calls of driver and NCCL; the maximum over ranks\n%-32s %5s %8s %-7s",
          "operation", "ranks", "KiB", "backend");
      for (auto const* column : columns) std::printf(" %12s", column);
      std::printf("\n");
    }
    auto const missed = exceeded(one);
    std::printf("%-32s %5d %8zu %-7s", one.at("variant").get<std::string>().c_str(), one.at("ranks").get<int>(),
                one.at("bytes").get<std::size_t>() >> 10, one.at("backend").get<std::string>().c_str());
    for (auto const* column : columns) std::printf(" %12.0f", one.at("counts").at(column).get<double>());
    std::printf("  %s\n", missed.empty() ? "met" : ("MISSED:" + missed).c_str());
    table.push_back({{"operation", one.at("variant")},
                     {"ranks", one.at("ranks")},
                     {"bytes", one.at("bytes")},
                     {"backend", one.at("backend")},
                     {"counts", one.at("counts")},
                     {"limits", one.at("limits")},
                     {"met", missed.empty()}});
  }
  return table;
}

/// Returns the median over launches of the slowest rank's median.
double typical_time(Json const& rows, Json const& like, char const* who) {
  std::vector<double> medians;
  double slowest = 0.0;
  for (auto const& row : rows) {
    bool const counts = row.at("path") == "device_time" && row.at("who") == who &&
                        row.at("variant") == like.at("variant") && row.at("ranks") == like.at("ranks");
    if (!counts) continue;
    slowest = std::max(slowest, row.at("median_us").get<double>());
    if (row.at("rank").get<int>() != row.at("ranks").get<int>() - 1) continue;  // the last row of a launch
    medians.push_back(std::exchange(slowest, 0.0));
  }
  if (medians.empty()) return 0.0;
  std::sort(medians.begin(), medians.end());
  return medians[medians.size() / 2];
}

void add_times(Json const& rows, Json& table) {
  constexpr double allowed_more_us = 2.0;
  constexpr double wanted_of_bus = 0.9;
  for (auto const& row : rows) {
    if (row.at("path") != "device_time" || row.at("who") != "crossrank" || row.at("rank") != 0) continue;
    auto const known = [&row](Json const& one) {
      return one.contains("ours_us") && one.at("operation") == row.at("variant") && one.at("ranks") == row.at("ranks");
    };
    if (std::any_of(table.begin(), table.end(), known)) continue;
    bool const is_gather = row.at("variant") == "gather";
    auto const* const peer = is_gather ? "pcie" : "nccl";
    auto const ours = typical_time(rows, row, "crossrank");
    auto const theirs = typical_time(rows, row, peer);
    Json one{{"operation", row.at("variant")}, {"ranks", row.at("ranks")}, {"bytes", row.at("bytes")},
             {"backend", row.at("backend")},   {"ours_us", ours},          {"peer", peer}};
    std::printf("%-32s %5d ranks: %.2f us", row.at("variant").get<std::string>().c_str(), row.at("ranks").get<int>(),
                ours);
    if (theirs > 0.0) {
      one["peer_us"] = theirs;
      one["met"] = is_gather ? theirs >= wanted_of_bus * ours : ours <= theirs + allowed_more_us;
      std::printf(", %s alone %.2f us %s", peer, theirs, one.at("met").get<bool>() ? "met" : "MISSED");
    }
    std::printf("\n");
    table.push_back(std::move(one));
  }
}

}  // namespace

Json device_table(Json const& rows) {
  auto table = counts_table(rows);
  add_times(rows, table);
  return table;
}

}  // namespace crossrank::bench
