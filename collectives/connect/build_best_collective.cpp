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

/// The rank of the job that this thread has built with `RankKind::thread`.
thread_local std::optional<int> rank_of_thread;

struct AllBuilt {
  std::mutex mutex{};
  std::map<std::optional<int>, Built> by_rank{};  ///< without a rank where this process is one rank
  bool has_thread_jobs = false;
};

/// Throws in a process whose threads have built jobs as ranks: a job of this process would be another one.
[[noreturn]] void refuse_beside_threads() {
  throw UsageError(
      {.operation = "build_best_collective",
       .message = "threads of this process are ranks and have built their jobs, but this thread is not a rank",
       .hint = "call it in the thread of a rank, or pass the rank's options again"});
}

AllBuilt& all_built() {
  static NoDestructor<AllBuilt> held;  // the jobs end with the process
  return held.value;
}

/// Threads as ranks build their jobs at the same time, because each needs the others.
Built& built(std::optional<int> rank) {
  auto& all = all_built();
  std::lock_guard const lock(all.mutex);
  if (!rank && all.has_thread_jobs && !all.by_rank.contains(std::nullopt)) refuse_beside_threads();
  return all.by_rank[rank];
}

void note_thread_job(int rank) {
  auto& all = all_built();
  std::lock_guard const lock(all.mutex);
  all.has_thread_jobs = true;
  rank_of_thread = rank;
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
  auto rank = rank_of_thread;
  if (options.connect.rank_kind == RankKind::thread) rank = describe_requested_job(options).rank;
  auto& own = built(rank);
  std::lock_guard const lock(own.mutex);
  if (!own.job) {
    own.job = make_job(options);
    own.mesh = options.mesh;
    if (rank) note_thread_job(*rank);
  } else if (!same(own.mesh, options.mesh)) {
    throw UsageError(
        {.operation = "build_best_collective",
         .message = std::string(rank ? "this rank" : "this process") + " has already built its job with another mesh",
         .hint = "request the same mesh, or construct a MeshCollective"});
  }
  return *own.job;
}

}  // namespace crossrank
