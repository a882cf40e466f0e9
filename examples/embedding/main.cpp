// An application that starts its own ranks, as threads of one process, and needs no launcher: `embedding [RANKS]`.
#include <crossrank/crossrank.hpp>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>
#include <vector>

namespace {

/// Runs one rank. Catches all exceptions, because none may leave the thread.
void work(int rank, int ranks) {
  try {
    auto world = xr::connect({.rank = rank, .world_size = ranks, .rank_kind = xr::RankKind::thread});
    auto const sum = world.all_reduce_value(rank);
    if (world.is_master()) std::printf("%d threads, ranks sum up to %d\n", world.world_size(), sum);
    world.close();
  } catch (std::exception const& e) {
    std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
    std::_Exit(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  int const ranks = argc > 1 ? std::atoi(argv[1]) : 4;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(work, rank, ranks);
  for (auto& thread : threads) thread.join();
}
