#include <crossrank/mesh.hpp>

#include <mutex>

#include <crossrank/error.hpp>

#include "lib/core/environment.hpp"
#include "lib/core/immortal.hpp"

namespace crossrank {
namespace {

struct Built {
  std::mutex mutex{};
  std::optional<JobCollective> job{};
  MeshOptions mesh{};
};

Built& built() {
  static Immortal<Built> held;  // the job ends with the process
  return held.value;
}

bool same(MeshOptions const& a, MeshOptions const& b) {
  return a.tp_size == b.tp_size && a.sharding_world_size == b.sharding_world_size &&
         a.local_world_size == b.local_world_size && a.ranks == b.ranks && a.device == b.device;
}

}  // namespace

JobCollective build_best_collective(BestCollectiveOptions const& options) {
  std::lock_guard const lock(built().mutex);
  if (!built().job) {
    int const ranks = options.connect.world_size.value_or(environment().world_size);
    built().job = ranks > 1 ? JobCollective(MeshCollective(connect(options.connect), options.mesh))
                            : JobCollective(FakeCollective(options.mesh.device));
    built().mesh = options.mesh;
  } else if (!same(built().mesh, options.mesh)) {
    throw UsageError({.operation = "build_best_collective",
                      .message = "this process has its job already, with another mesh",
                      .remedy = "ask for the same mesh, or make a MeshCollective of your own"});
  }
  return *built().job;
}

}  // namespace crossrank
