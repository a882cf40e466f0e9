// Gathers across hosts: shared memory inside each host, MPI between them. Run it with `mpirun -n 4 ./two_hosts` and the
// hosts in mpirun's own way, or without it by `crossrank run -n 4 -- two_hosts` on one host.
#include <crossrank/crossrank.hpp>

#include <cstdio>
#include <string>
#include <vector>

int main() {
  auto world = xr::connect();  // names no backend, so connect() chooses one
  int const hosts = world.all_reduce_value(world.is_local_master() ? 1 : 0);

  // Each rank knows its place on its host, which selects a device, and its place in the job.
  auto const place = std::to_string(world.local_rank()) + "/" + std::to_string(world.local_world_size());
  std::string places;
  for (auto const& each : world.gather_objects(place)) places += " " + each;

  auto const weight = xr::Tensor::of(std::vector<float>(6, static_cast<float>(world.rank())), {2, 3});
  auto const shards = xr::get_tensors_parallel(weight, world).take();
  if (world.is_master()) {
    std::printf("backend %s, %d host%s, local ranks%s\n", std::string(world.backend()).c_str(), hosts,
                hosts == 1 ? "" : "s", places.c_str());
    std::printf("joined %s\n", to_string(xr::concat(shards, {.dim = 0})).c_str());
  }
  world.close();
}
