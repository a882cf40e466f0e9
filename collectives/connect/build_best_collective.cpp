#include <crossrank/mesh.hpp>

#include <mutex>

#include <crossrank/error.hpp>
#include <crossrank/spi/resolve_options.hpp>

#include "collectives/connect/open_transport.hpp"
#include "lib/core/environment.hpp"
#include "lib/core/no_destructor.hpp"

namespace crossrank {
namespace {

struct Built {
  std::mutex mutex{};
  std::optional<JobCollective> job{};
  MeshOptions mesh{};
};

Built& built() {
  static NoDestructor<Built> held;  // the job ends with the process
  return held.value;
}

bool same(MeshOptions const& a, MeshOptions const& b) {
  return a.tp_size == b.tp_size && a.sharding_world_size == b.sharding_world_size &&
         a.local_world_size == b.local_world_size && a.ranks == b.ranks && a.device == b.device;
}

}  // namespace

namespace {

/// Opens the job that `connect` finds. Its size may be unknown before: with PMIx alone, only MPI knows it.
JobCollective make_job(BestCollectiveOptions const& options) {
  auto const job = describe_job(spi::resolve_options(options.connect, "build_best_collective"), environment());
  if (job.world_size == 1 && !job.unknown_size) return JobCollective(FakeCollective(options.mesh.device));
  auto const world = connect(options.connect);
  if (world.world_size() == 1) return JobCollective(FakeCollective(options.mesh.device));
  return JobCollective(MeshCollective(world, options.mesh));
}

}  // namespace

JobCollective build_best_collective(BestCollectiveOptions const& options) {
  std::lock_guard const lock(built().mutex);
  if (!built().job) {
    built().job = make_job(options);
    built().mesh = options.mesh;
  } else if (!same(built().mesh, options.mesh)) {
    throw UsageError({.operation = "build_best_collective",
                      .message = "this process has already built its job with another mesh",
                      .hint = "request the same mesh, or construct a MeshCollective"});
  }
  return *built().job;
}

}  // namespace crossrank
