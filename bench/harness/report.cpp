// Turns the rows of all launches into tables and a JSON file.
// Usage: bench_report JSON MACHINE_JSON ROWS...
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bench/harness/bandwidth.hpp"
#include "bench/harness/device.hpp"
#include "bench/harness/scaling.hpp"
#include "bench/harness/memory.hpp"
#include "bench/harness/results.hpp"
#include "bench/harness/targets.hpp"
#include "bench/harness/training.hpp"

namespace bench = crossrank::bench;
using Json = nlohmann::ordered_json;

namespace {

struct Tally {
  int met = 0;
  int missed = 0;
  int count(bool is_met) { return is_met ? ++met : ++missed; }
};

/// The operations on GPU tensors have a table of their own.
bool is_of_gpus(bench::Workload const& w) { return w.path == "device" || w.path == "device_time"; }

std::string size_text(bench::Workload const& w) {
  if (w.path == "barrier") return "-";
  if (w.path == "configs" || w.path == "headers" || w.path == "export_names")
    return std::to_string(w.bytes) + " tensors";
  if (w.bytes >= (1U << 20)) return std::to_string(w.bytes >> 20) + " MiB";
  return w.bytes >= 1024 ? std::to_string(w.bytes >> 10) + " KiB" : std::to_string(w.bytes) + " B";
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value >= 1000.0 ? "%.0f" : value >= 10.0 ? "%.1f" : "%.3f", value);
  return text;
}

std::string what_text(bench::Workload const& w) {
  if (!w.reads) return w.variant;
  return w.variant + (w.path == "consolidate" ? ", read back" : ", all read");
}

/// Returns the peers of one of our workloads: the same work, or the closest that they can do.
std::vector<bench::Workload> peers_of(bench::Workload const& ours, bench::Results const& results) {
  std::vector<bench::Workload> peers;
  for (auto const& [w, launches] : results) {
    if (w.who == "crossrank" || w.path != ours.path || w.ranks != ours.ranks || w.bytes != ours.bytes) continue;
    if (ours.path == "consolidate" || ours.path == "files" || ours.path == "transforms") {
      if (w.variant == ours.variant) peers.push_back(w);
      continue;
    }
    bool const limit = w.who.ends_with("_limit");
    if (limit && (ours.reads || ours.variant != "warm")) continue;
    bool const alike = w.path == "queue" || w.path == "collectives";
    if (alike && w.variant != ours.variant) continue;
    if (!limit && (alike || w.path == "gather") && w.reads != ours.reads) continue;
    if (ours.variant == "cold") continue;
    peers.push_back(w);
  }
  return peers;
}

Json compare(bench::Workload const& ours, bench::Workload const& peer, bench::Results const& results, Tally& tally) {
  auto const& own = results.at(ours);
  auto const& theirs = results.at(peer);
  Json row{{"path", ours.path},
           {"ranks", ours.ranks},
           {"bytes", ours.bytes},
           {"variant", ours.variant},
           {"reads", ours.reads}};
  row["ours_us"] = bench::typical(own, &bench::Launch::median_us);
  bool const same_work = peer.variant == "warm" || peer.variant == ours.variant;
  row["peer"] = same_work ? peer.who : peer.who + " (" + peer.variant + ")";
  if (!theirs.front().failed.empty()) {
    row["peer_failed"] = theirs.front().failed;
    return row;
  }
  auto const ratio = bench::paired_ratio(theirs, own);
  row["peer_us"] = bench::typical(theirs, &bench::Launch::median_us);
  row["ratio"] = ratio;
  if (auto const target = bench::wanted_ratio(ours, peer.who); target && same_work) {
    row["target"] = *target;
    row["met"] = ratio >= *target;
    tally.count(ratio >= *target);
  }
  return row;
}

void print(bench::Workload const& ours, std::string const& own_time, std::string const& peer,
           std::string const& peer_time, std::string const& ratio, std::string const& target, char const* met) {
  std::printf("%-11s %5d  %-11s %-19s %11s  %-22s %11s %9s %8s  %s\n", ours.path.c_str(), ours.ranks,
              size_text(ours).c_str(), what_text(ours).c_str(), own_time.c_str(), peer.c_str(), peer_time.c_str(),
              ratio.c_str(), target.c_str(), met);
}

void print_row(bench::Workload const& ours, Json const& row) {
  auto const own_time = number(row.at("ours_us"));
  if (row.contains("peer_failed")) {
    print(ours, own_time, row.at("peer"), "fails", "-", "", "");
    return;
  }
  auto const target = row.contains("target") ? number(row.at("target")) : std::string();
  char const* const met = !row.contains("met") ? "" : row.at("met").get<bool>() ? "met" : "MISSED";
  print(ours, own_time, row.at("peer"), number(row.at("peer_us")), number(row.at("ratio")), target, met);
}

Json speed_table(bench::Results const& results, unsigned cores, Tally& tally) {
  std::printf(
      "\nTimes in us per call (median over launches of the median); ratio = peer / ours; \"oversubscribed\": more "
      "ranks than cores\n");
  std::printf("%-11s %5s  %-11s %-19s %11s  %-22s %11s %9s %8s\n", "path", "ranks", "size", "state", "ours", "peer",
              "peer", "ratio", "target");
  auto rows = Json::array();
  for (auto const& [ours, launches] : results) {
    if (ours.who != "crossrank" || ours.path == "scaling" || is_of_gpus(ours)) continue;
    if (ours.variant == "fully_shard memory") continue;
    auto const time = bench::typical(launches, &bench::Launch::median_us);
    if (auto const limit = bench::wanted_time(ours, cores)) {
      bool const met = time <= *limit;
      tally.count(met);
      rows.push_back({{"path", ours.path},
                      {"ranks", ours.ranks},
                      {"bytes", ours.bytes},
                      {"variant", ours.variant},
                      {"reads", ours.reads},
                      {"ours_us", time},
                      {"peer", "time allowed"},
                      {"peer_us", *limit},
                      {"ratio", *limit / time},
                      {"target", 1.0},
                      {"met", met}});
      print_row(ours, rows.back());
    }
    auto const peers = peers_of(ours, results);
    for (auto const& peer : peers) {
      rows.push_back(compare(ours, peer, results, tally));
      print_row(ours, rows.back());
    }
    if (peers.empty() && !bench::wanted_time(ours, cores)) print(ours, number(time), "-", "", "", "", "");
  }
  return rows;
}

Json cost_table(bench::Results const& results, unsigned cores, Tally& tally) {
  std::printf(
      "\nOur costs per call: the maximum over ranks; copied: bytes of all ranks beyond the one copy that each writer "
      "may make\n");
  std::printf("%-11s %5s  %-11s %-19s %9s %9s %9s %8s %12s %9s %9s  %s\n", "path", "ranks", "size", "state", "min us",
              "median", "p99", "faults", "sys. calls", "switches", "copied", "targets");
  auto rows = Json::array();
  for (auto const& [ours, launches] : results) {
    if (ours.who != "crossrank" || ours.path == "consolidate" || ours.path.starts_with("export") ||
        ours.path == "headers" || ours.path == "hosts" || ours.path == "scaling" || is_of_gpus(ours) ||
        (ours.path == "transforms" && !ours.variant.ends_with("step")))
      continue;
    auto const cost = [&launches = launches](double bench::Launch::*member) {
      return bench::typical(launches, member);
    };
    auto const extra = cost(&bench::Launch::copied) - cost(&bench::Launch::payload);
    // A shared machine preempts now and then: a spin that exceeds its limit ends in a system call.
    constexpr double hardly_ever = 0.02;
    bool const free_cores = static_cast<unsigned>(ours.ranks) <= cores;
    Json row{{"path", ours.path},
             {"ranks", ours.ranks},
             {"bytes", ours.bytes},
             {"variant", ours.variant},
             {"reads", ours.reads},
             {"min_us", cost(&bench::Launch::min_us)},
             {"median_us", cost(&bench::Launch::median_us)},
             {"p99_us", cost(&bench::Launch::p99_us)},
             {"faults", cost(&bench::Launch::faults)},
             {"system_calls", cost(&bench::Launch::system_calls)},
             {"system_call_source", launches.front().system_call_source},
             {"switches", cost(&bench::Launch::switches)},
             {"copied", cost(&bench::Launch::copied)},
             {"copied_beyond", extra}};
    std::string verdict;
    if (ours.variant != "cold" && ours.path == "gather") {
      std::string missed;
      if (row.at("faults") > hardly_ever) missed += " faults";
      if (extra > 0.5) missed += " copies";
      if (free_cores && row.at("system_calls") > hardly_ever) missed += " calls";
      tally.count(missed.empty());
      row["met"] = missed.empty();
      verdict = missed.empty() ? "met" : "MISSED:" + missed;
    }
    std::printf("%-11s %5d  %-11s %-19s %9s %9s %9s %8.3f %12.3f %9.3f %9.0f  %s\n", ours.path.c_str(), ours.ranks,
                size_text(ours).c_str(), what_text(ours).c_str(), number(row.at("min_us")).c_str(),
                number(row.at("median_us")).c_str(), number(row.at("p99_us")).c_str(), row.at("faults").get<double>(),
                row.at("system_calls").get<double>(), row.at("switches").get<double>(), extra, verdict.c_str());
    rows.push_back(row);
  }
  return rows;
}

/// Checks the operations whose cost must not depend on the size: gathers of arena-backed tensors, and opening a file.
Json size_independence(bench::Results const& results, Tally& tally) {
  auto rows = Json::array();
  auto const counts = [](bench::Workload const& w) {
    return w.who == "crossrank" && !w.reads &&
           ((w.path == "gather" && w.variant == "arena-backed") || (w.path == "files" && w.variant == "open"));
  };
  std::set<std::pair<std::string, int>> kinds;
  for (auto const& [w, launches] : results) {
    if (counts(w)) kinds.emplace(w.variant, w.ranks);
  }
  for (auto const& [variant, n] : kinds) {
    double least = 0.0;
    double most = 0.0;
    int sizes = 0;
    for (auto const& [w, launches] : results) {
      if (!counts(w) || w.variant != variant || w.ranks != n) continue;
      auto const time = bench::typical(launches, &bench::Launch::median_us);
      least = sizes == 0 ? time : std::min(least, time);
      most = std::max(most, time);
      ++sizes;
    }
    if (sizes < 2) continue;
    constexpr double allowed = 1.5;
    bool const met = most <= allowed * least;
    tally.count(met);
    std::printf("%s, %d ranks, %d sizes: slowest / fastest %.2f (at most %.1f) %s\n", variant.c_str(), n, sizes,
                most / least, allowed, met ? "met" : "MISSED");
    rows.push_back({{"variant", variant},
                    {"ranks", n},
                    {"sizes", sizes},
                    {"slowest_by_fastest", most / least},
                    {"allowed", allowed},
                    {"met", met}});
  }
  return rows;
}

int report(std::string const& target, std::string const& machine_file, std::vector<std::string> const& files) {
  Json machine;
  std::ifstream(machine_file) >> machine;
  auto rows = Json::array();
  auto const results = bench::load(files, rows);
  auto const cores = machine.at("calibration").at("cores").get<unsigned>();
  Tally tally;
  Json all{{"machine", machine}};
  all["comparisons"] = speed_table(results, cores, tally);
  all["bandwidths"] = bench::bandwidth_table(results);
  all["memory"] = bench::memory_table(results);
  for (auto const& row : all.at("memory")) {
    if (row.contains("met")) tally.count(row.at("met").get<bool>());
  }
  all["device"] = bench::device_table(rows);
  for (auto const& row : all.at("device")) {
    if (row.contains("met")) tally.count(row.at("met").get<bool>());
  }
  all["scaling"] = bench::scaling_table(results);
  all["training"] = bench::training_table(results);
  for (auto const* const table : {"scaling", "training"}) {
    for (auto const& row : all.at(table)) {
      if (row.contains("met")) tally.count(row.at("met").get<bool>());
    }
  }
  all["costs"] = cost_table(results, cores, tally);
  std::printf("\n");
  all["size_independence"] = size_independence(results, tally);
  all["targets"] = {{"met", tally.met}, {"missed", tally.missed}};
  all["rows"] = std::move(rows);
  std::ofstream out(target);
  out << all.dump(1) << "\n";
  out.close();
  if (!out) throw std::runtime_error("cannot write " + target);
  std::printf("\ntargets met: %d of %d; everything as JSON: %s\n", tally.met, tally.met + tally.missed, target.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s JSON MACHINE_JSON ROWS...\n", argv[0]);
    return 2;
  }
  try {
    return report(argv[1], argv[2], {argv + 3, argv + argc});
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 1;
  }
}
