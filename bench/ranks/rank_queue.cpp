// Sends messages through MessageQueue, from rank 0 to all others and from rank 1 back, read in place.
// Usage: bench_rank_queue --out FILE [--quick] -- SIZES...
#include <crossrank/collective.hpp>
#include <crossrank/message_queue.hpp>

#include "bench/harness/queue_workload.hpp"

namespace bench = crossrank::bench;
namespace xr = crossrank;

int main(int argc, char** argv) {
  auto const sizes = bench::sizes_in(argc, argv);
  auto const arguments = bench::parse(argc - static_cast<int>(sizes.size()) - 1, argv);
  auto world = xr::connect();
  bool const pairs = world.rank() < 2;
  auto const there = xr::MessageQueue::create(world);
  auto const answering = world.split_by(pairs ? 0 : 1);
  auto const back = pairs ? xr::MessageQueue::create(answering, {.writer_rank = 1}) : xr::MessageQueue();
  bool const first = world.rank() == 0;
  auto const rows = bench::measure_queue(
      {.who = "crossrank",
       .rank = world.rank(),
       .ranks = world.world_size(),
       .send = [&](std::span<std::byte const> bytes) { (first ? there : back).enqueue_bytes(bytes); },
       .receive =
           [&](bench::Consume const& consume) {
             bench::require((first ? back : there).read_bytes(consume), "the queue ended too early");
           },
       .barrier = [&] { world.barrier(); }},
      sizes, arguments.quick);
  bench::append(arguments.out, rows);
  world.close();
}
