#include "bench/harness/training.hpp"

#include <cstdio>
#include <string>
#include <vector>

namespace crossrank::bench {
namespace {

using Json = nlohmann::ordered_json;
constexpr double bytes_of_mebibyte = 1048576.0;
constexpr double wanted_share = 0.8;

/// Returns the share of communication that is hidden, the median over launches.
double hidden_share(std::vector<Launch> const& exposed, std::vector<Launch> const& communication) {
  std::vector<double> shares;
  for (std::size_t i = 0; i < exposed.size(); ++i)
    shares.push_back(1 - exposed[i].median_us / communication.at(i).median_us);
  return median(std::move(shares));
}

Json training_row(Workload const& w) {
  return {{"path", w.path}, {"who", w.who}, {"ranks", w.ranks}, {"bytes", w.bytes}, {"variant", w.variant}};
}

void print_figure(Workload const& w, char const* what, double got, double wanted, char const* met) {
  std::printf("%-10s %5d  %-34s %9.2f %9.2f  %s\n", w.who.c_str(), w.ranks, what, got, wanted, met);
}

}  // namespace

Json training_table(Results const& results) {
  auto rows = Json::array();
  for (auto const& [w, launches] : results) {
    if (w.path != "transforms") continue;
    bool const waits = w.variant == "ddp waiting exposed";
    bool const is_memory = w.variant == "fully_shard memory";
    if (!waits && !is_memory && w.variant != "ddp computing exposed") continue;
    if (rows.empty())
      std::printf("\nTraining: shares of communication behind a backward pass of twice its length; memory of a rank\n");
    auto row = training_row(w);
    auto const ours = w.who == "crossrank";
    auto const judge = [&](bool met) {
      if (ours) row["met"] = met;
      return !ours ? "" : met ? "met" : "MISSED";
    };
    if (is_memory) {
      auto const peak = typical(launches, &Launch::peak_bytes) / bytes_of_mebibyte;
      auto const allowed = launches.front().payload / bytes_of_mebibyte / (ours ? w.ranks : 1);
      row["peak_mebibytes"] = peak;
      row["allowed_mebibytes"] = allowed;
      print_figure(w, "memory of a rank, MiB", peak, allowed, judge(peak <= allowed));
    } else {
      auto communication = w;
      communication.variant = "ddp communication";
      auto const share = hidden_share(launches, results.at(communication));
      row["hidden"] = share;
      // A backward pass that uses its core leaves none to communication if there are as many ranks as cores.
      print_figure(w, waits ? "hidden behind a waiting backward" : "hidden behind a computing backward", share,
                   waits ? wanted_share : 0.0, waits ? judge(share >= wanted_share) : "");
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace crossrank::bench
