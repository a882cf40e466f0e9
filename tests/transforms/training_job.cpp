#include "tests/transforms/training_job.hpp"

#include <utility>

#include <crossrank/transforms/fully_shard.hpp>

#include "tests/support/spawn_rank.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank::test {

void run_jobs(int count, int sharding, std::function<void(MeshCollective const& job)> const& body) {
  ThreadRankOptions const options{.job_id = random_job_id()};
  run_thread_ranks(
      count,
      [&](Collective const& world) {
        auto driven = thread_options(world.rank(), count, options);
        driven.progress = Progress::thread;
        body(MeshCollective(connect(driven), {.sharding_world_size = sharding}));
      },
      options);
}

std::shared_ptr<TrainableModel> distributed(MeshCollective const& job, std::shared_ptr<TrainableModel> model) {
  if ((*job.mesh())["dp_shard"].world_size() > 1) {
    return FullyShardTransform({.reshard_after_forward = true}, job).apply(std::move(model));
  }
  return DDPTransform({}, job).apply(std::move(model));
}

}  // namespace crossrank::test
