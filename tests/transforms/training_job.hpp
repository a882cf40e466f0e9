#pragma once
#include <functional>
#include <memory>

#include <crossrank/transforms.hpp>

namespace crossrank::test {

/// Runs `body` on threads, as ranks of a job with a progress thread whose mesh shards over `sharding` ranks.
void run_jobs(int count, int sharding, std::function<void(MeshCollective const& job)> const& body);

/// Applies `FullyShardTransform` in a job that shards, and `DDPTransform` in another one, with default configs.
[[nodiscard]] std::shared_ptr<TrainableModel> distributed(MeshCollective const& job,
                                                          std::shared_ptr<TrainableModel> model);

}  // namespace crossrank::test
