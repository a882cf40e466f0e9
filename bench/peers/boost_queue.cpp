// Boost.Interprocess message_queue, one for each pair of ranks, because each message goes to one receiver only.
// Usage: boost_queue RANKS --out FILE [--quick] -- SIZES...
#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include <boost/interprocess/ipc/message_queue.hpp>

#include "bench/peers/forked_ranks.hpp"
#include "bench/harness/queue_workload.hpp"

namespace bench = crossrank::bench;
namespace ipc = boost::interprocess;

int main(int argc, char** argv) {
  bench::require(argc > 1, "usage: boost_queue RANKS --out FILE [--quick] -- SIZES...");
  int const ranks = std::atoi(argv[1]);
  auto const sizes = bench::sizes_in(argc, argv);
  auto const arguments = bench::parse(argc - static_cast<int>(sizes.size()) - 2, argv + 1);
  auto const max = *std::max_element(sizes.begin(), sizes.end());
  constexpr std::size_t places = 6;
  auto const name_of = [pid = ::getpid()](int queue) {
    return "crossrank_bench_" + std::to_string(pid) + "_" + std::to_string(queue);
  };
  // Queue r leads to rank r. All queues are created before the fork and unlinked afterwards.
  std::deque<ipc::message_queue> queues;
  for (int queue = 0; queue < ranks; ++queue)
    queues.emplace_back(ipc::create_only, name_of(queue).c_str(), places, max);
  for (int queue = 0; queue < ranks; ++queue) ipc::message_queue::remove(name_of(queue).c_str());

  bench::ForkedRanks job(ranks);
  std::vector<std::byte> buffer(max);
  auto const rows = bench::measure_queue({.who = "boost_queue",
                                          .rank = job.rank(),
                                          .ranks = ranks,
                                          .send =
                                              [&](std::span<std::byte const> bytes) {
                                                if (job.rank() != 0)
                                                  return queues[0].send(bytes.data(), bytes.size(), 0);
                                                for (std::size_t to = 1; to < queues.size(); ++to)
                                                  queues[to].send(bytes.data(), bytes.size(), 0);
                                              },
                                          .receive =
                                              [&](bench::Consume const& consume) {
                                                std::size_t got = 0;
                                                unsigned priority = 0;
                                                queues[static_cast<std::size_t>(job.rank())].receive(
                                                    buffer.data(), buffer.size(), got, priority);
                                                consume(std::span(buffer).first(got));
                                              },
                                          .barrier = [&] { job.barrier(); }},
                                         sizes, arguments.quick);
  bench::append(arguments.out, rows);
  job.finish();
}
