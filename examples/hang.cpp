// Hangs, because every rank waits for the message of its neighbour before it sends its own. `crossrank inspect` shows
// the cycle. Run it with `crossrank run -n 3 -- hang`, or with the argument `fixed` to see it end.
#include <crossrank/crossrank.hpp>

#include <cstdio>
#include <string_view>

int main(int argc, char** argv) {
  auto world = xr::connect();
  int const next = (world.rank() + 1) % world.world_size();
  int const previous = (world.rank() + world.world_size() - 1) % world.world_size();
  auto const mine = xr::Tensor::scalar(world.rank());
  auto received = xr::Tensor::scalar(-1);

  if (argc > 1 && std::string_view(argv[1]) == "fixed") {
    world.sendrecv(received, mine, {.dst = next, .src = previous});
  } else {
    world.recv(received, previous);  // every rank is here
    world.send(mine, next);
  }

  std::printf("rank %d has the message of rank %d\n", world.rank(), received.item<int>());
  world.close();
}
