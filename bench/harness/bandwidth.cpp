#include "bench/harness/bandwidth.hpp"

#include <cstdio>
#include <string>

namespace crossrank::bench {
namespace {

/// Returns the bytes that cross between ranks per byte of the whole.
double bus_factor(Workload const& w) {
  auto const part = static_cast<double>(w.ranks - 1) / w.ranks;
  if (w.variant == "all_reduce") return 2 * part;
  return w.variant.starts_with("broadcast") ? 1.0 : part;
}

}  // namespace

nlohmann::ordered_json bandwidth_table(Results const& results) {
  auto rows = nlohmann::ordered_json::array();
  for (auto const& [w, launches] : results) {
    if (w.path != "collectives") continue;
    if (rows.empty())
      std::printf("\nBandwidths in GB/s of 1e9 bytes\n%-18s %5s %11s  %-10s %11s %11s %11s %11s\n", "operation",
                  "ranks", "bytes", "who", "median us", "p99 us", "algorithm", "bus");
    auto const time = typical(launches, &Launch::median_us);
    auto const p99 = typical(launches, &Launch::p99_us);
    auto const algorithm = static_cast<double>(w.bytes) / time * 1e-3;
    auto const bus = algorithm * bus_factor(w);
    std::printf("%-18s %5d %11zu  %-10s %11.1f %11.1f %11.3f %11.3f\n", w.variant.c_str(), w.ranks, w.bytes,
                w.who.c_str(), time, p99, algorithm, bus);
    rows.push_back({{"operation", w.variant},
                    {"ranks", w.ranks},
                    {"bytes", w.bytes},
                    {"who", w.who},
                    {"median_us", time},
                    {"p99_us", p99},
                    {"algorithm_gb_s", algorithm},
                    {"bus_gb_s", bus}});
  }
  return rows;
}

}  // namespace crossrank::bench
