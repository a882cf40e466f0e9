#include "bench/harness/memory.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <tuple>

namespace crossrank::bench {
namespace {

using Json = nlohmann::ordered_json;
constexpr double mebibyte = 1048576.0;
constexpr double allowed_mebibytes = 256.0;
constexpr double allowed_of_plan_mebibytes = 1024.0;
// A larger model needs a little more memory for the names and positions of its tensors.
constexpr double allowed_growth = 1.5;

Json row_of(Workload const& w) {
  return {{"path", w.path},   {"who", w.who},         {"ranks", w.ranks},
          {"bytes", w.bytes}, {"variant", w.variant}, {"reads", w.reads}};
}

/// The peak memory of one of our ways to merge, over all sizes.
struct Peaks {
  double least = 0.0;
  double most = 0.0;
  std::size_t smallest = 0;
  std::size_t largest = 0;
};

/// Returns the largest growth over all our ways to merge.
std::optional<Json> growth(Results const& results) {
  std::map<std::tuple<std::string, int, bool>, Peaks> ways;
  for (auto const& [w, launches] : results) {
    auto const peak = typical(launches, &Launch::peak_bytes);
    if (w.who != "crossrank" || w.path != "consolidate" || peak <= 0.0) continue;
    auto const [way, is_new] = ways.try_emplace({w.variant, w.ranks, w.reads}, Peaks{peak, peak, w.bytes, w.bytes});
    if (is_new) continue;
    auto& peaks = way->second;
    peaks = {std::min(peaks.least, peak), std::max(peaks.most, peak), std::min(peaks.smallest, w.bytes),
             std::max(peaks.largest, w.bytes)};
  }
  Peaks worst;
  for (auto const& [way, peaks] : ways) {
    if (peaks.largest > peaks.smallest && peaks.most * worst.least >= worst.most * peaks.least) worst = peaks;
  }
  if (worst.largest == 0) return std::nullopt;
  auto const ratio = worst.most / worst.least;
  bool const met = ratio <= allowed_growth;
  auto const gibibytes = [](std::size_t bytes) { return static_cast<double>(bytes) / mebibyte / 1024.0; };
  std::printf("our memory, %.0f to %.0f GiB, worst case: largest / smallest %.2f (at most %.1f) %s\n",
              gibibytes(worst.smallest), gibibytes(worst.largest), ratio, allowed_growth, met ? "met" : "MISSED");
  return Json{
      {"path", "consolidate"}, {"who", "crossrank"}, {"growth", ratio}, {"allowed", allowed_growth}, {"met", met}};
}

}  // namespace

Json memory_table(Results const& results) {
  auto rows = Json::array();
  for (auto const& [w, launches] : results) {
    auto const peak = typical(launches, &Launch::peak_bytes);
    if (peak <= 0.0 || w.path == "scaling" || w.path == "transforms") continue;
    if (rows.empty())
      std::printf(
          "\nWhole commands: memory of the largest process, processor time of all processes, shortest launch\n%-18s "
          "%5s "
          " %8s  %-14s %10s %12s %10s\n",
          "who", "ranks", "GiB", "state", "peak MiB", "processor s", "least s");
    auto row = row_of(w);
    std::vector<double> times;
    for (auto const& launch : launches) times.push_back(launch.median_us);
    row["peak_bytes"] = peak;
    row["processor_us"] = typical(launches, &Launch::processor_us);
    row["least_us"] = *std::min_element(times.begin(), times.end());
    char const* met = "";
    if (w.who == "crossrank") {
      // A plan of many tensors is in memory as a whole.
      auto const allowed = w.path == "headers" ? allowed_of_plan_mebibytes : allowed_mebibytes;
      row["met"] = peak <= allowed * mebibyte;
      met = row.at("met").get<bool>() ? "met" : "MISSED";
    }
    std::printf("%-18s %5d  %8.1f  %-14s %10.1f %12.2f %10.2f  %s\n", (w.who + (w.reads ? ", read back" : "")).c_str(),
                w.ranks, static_cast<double>(w.bytes) / mebibyte / 1024.0, w.variant.c_str(), peak / mebibyte,
                row.at("processor_us").get<double>() / 1e6, row.at("least_us").get<double>() / 1e6, met);
    rows.push_back(std::move(row));
  }
  if (auto row = growth(results)) rows.push_back(std::move(*row));
  return rows;
}

}  // namespace crossrank::bench
