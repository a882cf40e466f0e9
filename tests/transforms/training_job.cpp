#include "tests/transforms/training_job.hpp"

#include <utility>

#include <crossrank/transforms/fully_shard.hpp>

#include "tests/support/thread_ranks.hpp"

namespace crossrank::test {

void run_jobs(int count, int sharding, std::function<void(MeshCollective const& job)> const& body) {
  run_driven_ranks(count,
                   [&](Collective const& world) { body(MeshCollective(world, {.sharding_world_size = sharding})); });
}

std::shared_ptr<TrainableModel> distributed(MeshCollective const& job, std::shared_ptr<TrainableModel> model) {
  if ((*job.mesh())["dp_shard"].world_size() > 1) {
    return FullyShardTransform({.reshard_after_forward = true}, job).apply(std::move(model));
  }
  return DDPTransform({}, job).apply(std::move(model));
}

}  // namespace crossrank::test
