#include "report.hpp"

#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <utility>

#include <sys/resource.h>

namespace tp_export {
namespace {

/// The costs of this process so far.
struct Counters {
  std::uint64_t copied = 0;
  std::uint64_t faults = 0;
};

/// Returns the bytes that read and write calls have moved, or 0 if the kernel does not count them.
std::uint64_t file_bytes() {
  std::ifstream in("/proc/self/io");
  std::uint64_t sum = 0, value = 0;
  for (std::string key; in >> key >> value;) {
    if (key == "rchar:" || key == "wchar:") sum += value;
  }
  return sum;
}

Counters counters() {
  rusage usage{};
  (void)getrusage(RUSAGE_SELF, &usage);  // cannot fail for the own process
  return {xr::statistics().bytes_copied + file_bytes(), static_cast<std::uint64_t>(usage.ru_minflt)};
}

}  // namespace

Row measure(xr::Collective const& world, std::string path, std::function<Step()> const& step) {
  world.barrier();
  auto const before = counters();
  auto const start = std::chrono::steady_clock::now();
  auto const done = step();
  world.barrier();
  std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
  auto const after = counters();
  std::array<std::uint64_t, 3> sums{done.bytes, after.copied - before.copied + done.joined,
                                    after.faults - before.faults};
  world.all_reduce(std::span<std::uint64_t>(sums));
  return {std::move(path), sums[0], took.count(), sums[1], sums[2]};
}

Progress::Progress(xr::Collective const& world, std::string what, std::size_t total)
    : what_(std::move(what)), total_(total), speaks_(world.is_master()) {}

void Progress::operator()(std::size_t done) {
  auto const quarter = 4 * done / total_;
  if (!speaks_ || quarter == printed_quarter_) return;
  printed_quarter_ = quarter;
  std::printf("%s: %zu of %zu rounds\n", what_.c_str(), done, total_);
}

std::string bytes_text(std::uint64_t bytes) {
  static constexpr std::array<char const*, 5> units{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < units.size(); ++unit) value /= 1024;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return text.data();
}

void print_table(std::vector<Row> const& rows) {
  std::printf("%-19s %12s %11s %8s %12s %8s\n", "path", "bytes", "time", "GB/s", "copies/byte", "faults");
  for (auto const& row : rows) {
    auto const bytes = static_cast<double>(row.bytes);
    std::printf("%-19s %12s %8.2f ms %8.2f %12.2f %8llu\n", row.path.c_str(), bytes_text(row.bytes).c_str(),
                row.seconds * 1e3, bytes / row.seconds * 1e-9, static_cast<double>(row.copied) / bytes,
                static_cast<unsigned long long>(row.faults));
  }
}

}  // namespace tp_export
