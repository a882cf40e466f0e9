#include "bench/harness/scaling.hpp"

#include <cstdio>
#include <map>
#include <string>

namespace crossrank::bench {
namespace {

constexpr double bytes_per_mebibyte = 1048576.0;
/// For all ranks together, in cores: waiting must not use the processor time that the late rank needs.
constexpr double allowed_cores = 0.25;

struct Costs {
  double connect_us = 0.0;
  double memory = 0.0;  ///< bytes, sum over all ranks
  double barrier_us = 0.0;
  double cores = 0.0;  ///< busy while one rank is late
};

}  // namespace

nlohmann::ordered_json scaling_table(Results const& results) {
  std::map<int, Costs> rows;
  for (auto const& [w, launches] : results) {
    if (w.path != "scaling") continue;
    auto& costs = rows[w.ranks];
    auto const time = typical(launches, &Launch::median_us);
    if (w.variant == "connect") {
      costs.connect_us = time;
      costs.memory = typical(launches, &Launch::peak_bytes);
    } else if (w.variant == "barrier") {
      costs.barrier_us = time;
    } else {
      costs.cores = typical(launches, &Launch::processor_us) / time;
    }
  }
  auto out = nlohmann::ordered_json::array();
  if (rows.empty()) return out;
  std::printf("\nMany ranks on one node, totals of the job\n%5s %12s %12s %14s %12s %20s\n", "ranks", "connect ms",
              "barrier us", "memory MiB", "MiB per rank", "cores while waiting");
  for (auto const& [ranks, costs] : rows) {
    bool const met = costs.cores <= allowed_cores;
    auto const memory = costs.memory / bytes_per_mebibyte;
    std::printf("%5d %12.0f %12.0f %14.1f %12.2f %20.3f  %s\n", ranks, costs.connect_us / 1e3, costs.barrier_us, memory,
                memory / ranks, costs.cores, met ? "met" : "MISSED");
    out.push_back({{"path", "scaling"},
                   {"ranks", ranks},
                   {"connect_us", costs.connect_us},
                   {"barrier_us", costs.barrier_us},
                   {"memory_bytes", costs.memory},
                   {"cores_while_waiting", costs.cores},
                   {"allowed_cores", allowed_cores},
                   {"met", met}});
  }
  return out;
}

}  // namespace crossrank::bench
