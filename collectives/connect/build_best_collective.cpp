#include <crossrank/mesh.hpp>

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include <crossrank/error.hpp>
#include <crossrank/spi/resolve_options.hpp>

#include "collectives/connect/open_transport.hpp"
#include "lib/core/environment.hpp"
#include "lib/core/no_destructor.hpp"

namespace crossrank {
namespace {

struct Built {
  std::mutex mutex{};  ///< held by the thread that builds the job
  std::optional<JobCollective> job{};
  MeshOptions mesh{};
};

struct AllBuilt {
  std::mutex mutex{};
  std::map<std::optional<int>, Built> by_rank{};  ///< without a rank where this process is one rank
};

/// Threads as ranks build their jobs at the same time, because each needs the others.
Built& built(std::optional<int> rank) {
  static NoDestructor<AllBuilt> held;  // the jobs end with the process
  std::lock_guard const lock(held.value.mutex);
  return held.value.by_rank[rank];
}

bool same(MeshOptions const& a, MeshOptions const& b) {
  return a.tp_size == b.tp_size && a.sharding_world_size == b.sharding_world_size &&
         a.local_world_size == b.local_world_size && a.ranks == b.ranks && a.device == b.device;
}

JobDescription describe_requested_job(BestCollectiveOptions const& options) {
  return describe_job(spi::resolve_options(options.connect, "build_best_collective"), environment());
}

/// Opens the job that `connect` finds. Its size may be unknown before: with PMIx alone, only MPI knows it.
JobCollective make_job(BestCollectiveOptions const& options) {
  auto const job = describe_requested_job(options);
  if (job.world_size == 1 && !job.unknown_size) return JobCollective(FakeCollective(options.mesh.device));
  auto const world = connect(options.connect);
  if (world.world_size() == 1) return JobCollective(FakeCollective(options.mesh.device));
  return JobCollective(MeshCollective(world, options.mesh));
}

}  // namespace

JobCollective build_best_collective(BestCollectiveOptions const& options) {
  bool const threads = options.connect.ranks_are == RanksAre::threads;
  auto& own = built(threads ? std::optional(describe_requested_job(options).rank) : std::nullopt);
  std::lock_guard const lock(own.mutex);
  if (!own.job) {
    own.job = make_job(options);
    own.mesh = options.mesh;
  } else if (!same(own.mesh, options.mesh)) {
    throw UsageError({.operation = "build_best_collective",
                      .message = std::string(threads ? "this rank" : "this process") +
                                 " has already built its job with another mesh",
                      .hint = "request the same mesh, or construct a MeshCollective"});
  }
  return *own.job;
}

}  // namespace crossrank
