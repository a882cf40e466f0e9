// Arranges the ranks as data-parallel replicas of tensor-parallel pairs, and reduces along each axis. Run it with
// `crossrank run -n 4 -- mesh`.
#include <crossrank/crossrank.hpp>

#include <array>
#include <cstdio>

int main() {
  auto const world = xr::connect();
  int const tp_size = world.world_size() % 2 == 0 ? 2 : 1;
  xr::Mesh const mesh(world, {{"dp", world.world_size() / tp_size}, {"tp", tp_size}});
  auto const& tp = mesh["tp"];
  auto const& dp = mesh["dp"];

  // A row-parallel layer: each rank of a pair has a partial sum of the activation.
  std::array<float, 2> activation{1.F, static_cast<float>(world.rank())};
  tp.all_reduce(activation);

  // The gradient of this rank's slice: the replicas that hold the same slice average it.
  auto const gradient = dp.all_reduce_value(static_cast<float>(world.rank()), xr::ReduceOp::avg);

  std::printf("rank %d is dp %d, tp %d: activation %g %g, gradient %g\n", world.rank(), mesh.coordinate("dp"),
              mesh.coordinate("tp"), static_cast<double>(activation[0]), static_cast<double>(activation[1]),
              static_cast<double>(gradient));

  // A group that is not an axis: pipelines tie the embeddings of their first and last rank.
  if (world.world_size() > 1) {
    auto const ends = world.split({{0, world.world_size() - 1}});
    if (ends.connected() && ends.is_master()) std::printf("the ends of the job are %d ranks\n", ends.world_size());
  }
}
