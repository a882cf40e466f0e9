// Back-to-back barriers of all ranks of a job.
#include <algorithm>

#include <crossrank/collective.hpp>

#include "bench/harness/consume.h"
#include "bench/harness/harness.hpp"

namespace bench = crossrank::bench;

int main(int argc, char** argv) {
  auto const arguments = bench::parse(argc, argv);
  auto world = crossrank::connect();
  bench::UsageMeter const meter;
  bench::Row row{.path = "barrier", .variant = "warm", .rank = world.rank(), .ranks = world.world_size()};
  for (int i = 0; i < 1000; ++i) world.barrier();
  auto const samples = bench_samples(0, arguments.quick ? 1 : 0);
  bench::measure(row, meter, samples, 64, 0, [&](std::uint64_t) { world.barrier(); });
  bench::append(arguments.out, {row});
  world.close();
}
