// Measures many ranks on one node: the cost of connecting, the time of a barrier, and the cost of waiting for a late
// rank. All figures are totals of the job, written by rank 0.
#include <array>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>

#include <sys/resource.h>

#include <crossrank/collective.hpp>

#include "bench/harness/harness.hpp"

namespace bench = crossrank::bench;

namespace {

/// Returns the processor time of this process so far: all threads, user and system.
double processor_us() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  auto const microseconds = [](timeval const& time) {
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_usec);
  };
  return microseconds(used.ru_utime) + microseconds(used.ru_stime);
}

/// Returns this process's share of the memory in use. A shared page is divided among the processes that map it.
double proportional_bytes() {
  std::ifstream in("/proc/self/smaps_rollup");
  for (std::string word; in >> word;) {
    double kibibytes = 0.0;
    if (word == "Pss:" && in >> kibibytes) return kibibytes * 1024.0;
  }
  bench::fail("cannot find out how much memory this process uses");
}

double of_all(crossrank::Collective const& world, double mine) {
  std::array<double, 1> value{mine};
  world.all_reduce(std::span<double>(value));
  return value[0];
}

bench::Row once(std::string variant, double took_us) {
  return {.path = "scaling",
          .variant = std::move(variant),
          .calls = 1,
          .min_us = took_us,
          .median_us = took_us,
          .p99_us = took_us};
}

}  // namespace

int main(int argc, char** argv) {
  auto const arguments = bench::parse(argc, argv);
  bench::UsageMeter const meter;
  auto const start = bench::microseconds_now();
  auto const before_connect = processor_us();
  auto world = crossrank::connect();
  world.barrier();
  auto connected = once("connect", bench::microseconds_now() - start);
  auto const connecting = processor_us() - before_connect;

  bench::Row barrier{.path = "scaling", .variant = "barrier"};
  int const warm_up = arguments.quick ? 5 : 20;
  for (int i = 0; i < warm_up; ++i) world.barrier();
  bench::measure(barrier, meter, arguments.quick ? 10 : 40, 5, 0, [&](std::uint64_t) { world.barrier(); });
  connected.processor_us = of_all(world, connecting);
  connected.peak_bytes = of_all(world, proportional_bytes());

  // The last rank is late. The first rank only waits, like all others.
  std::chrono::milliseconds const lateness(arguments.quick ? 1500 : 4000);
  world.barrier();
  auto const window = bench::microseconds_now();
  auto const before = processor_us();
  if (world.rank() == world.world_size() - 1) std::this_thread::sleep_for(lateness);
  world.barrier();
  auto late = once("one rank late", bench::microseconds_now() - window);
  late.processor_us = of_all(world, processor_us() - before);

  if (world.rank() == 0) {
    for (auto* const row : {&connected, &barrier, &late}) row->ranks = world.world_size();
    bench::append(arguments.out, {connected, barrier, late});
  }
  world.close();
}
