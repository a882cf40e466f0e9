// Fills a cache on one rank before the others look for it, then counts on one rank for all. When a rank throws, the job
// loses that step alone. Run it alone, or with `crossrank run -n 4 -- helpers [RANK_THAT_FAILS]`.
#include <crossrank/crossrank.hpp>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace {

std::string find_cache(xr::Collective const& world, bool fails) {
  if (fails) throw std::runtime_error("no space for the cache");
  return world.is_master() ? "filled" : "found";
}

/// Runs one step and returns the number of tokens, or -1 when it failed.
long step(xr::Collective const& world, bool fails) {
  try {
    auto const cache = xr::zero_first(world, [&] { return find_cache(world, fails); });
    auto const tokens = xr::compute_and_broadcast(world, [] { return 16'777'217L; });
    std::printf("rank %d %s the cache, counts %ld tokens\n", world.rank(), cache.c_str(), tokens);
    return tokens;
  } catch (xr::RemoteError const& e) {
    std::printf("rank %d: rank %d threw %s\n", world.rank(), e.failed_ranks()[0], e.remote_type().c_str());
  } catch (std::runtime_error const& e) {
    std::printf("rank %d: %s\n", world.rank(), e.what());
  }
  return -1;
}

}  // namespace

int main(int argc, char** argv) {
  auto world = xr::connect();
  int const failing = argc > 1 ? std::atoi(argv[1]) : -1;
  if (failing >= 0 && step(world, world.rank() == failing) != -1) return 1;
  auto const tokens = step(world, false);  // the group is still usable
  auto const counts = world.all_gather_objects(tokens);
  world.close();
  for (auto const count : counts) {
    if (count != 16'777'217L) return 1;
  }
}
