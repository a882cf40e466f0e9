#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/transforms_fully_shard.hpp>

#include "tests/support/process_ranks.hpp"
#include "tests/transforms/tiny_mlp.hpp"

namespace crossrank::test {
namespace {

/// Arguments: the transform, and the event at which rank 1 dies.
CROSSRANK_RANK_SCENARIO(training_that_loses_a_rank) {
  bool const sharded = self.arguments.at(0) == "sharded";
  auto world = connect({.backend = "shm", .timeout = std::chrono::seconds(60), .progress = Progress::thread});
  MeshCollective const job(world, {.sharding_world_size = sharded ? world.world_size() : 1});
  auto const tiny = std::make_shared<TinyMlp>();
  auto const model = sharded ? FullyShardTransform({.reshard_after_forward = true}, job).apply(tiny)
                             : DDPTransform({}, job).apply(tiny);
  int step = 0;
  tiny->on_event = [&](std::string const& at) {
    if (step == 1 && self.rank == 1 && at == self.arguments.at(1)) std::raise(SIGKILL);
  };
  try {
    for (; step < 3; ++step) run_pass(*model, step, 0, 3);
  } catch (PeerLostError const& e) {
    EXPECT_THAT(e.failed_ranks(), testing::ElementsAre(1));
    return testing::Test::HasFailure() ? 1 : 0;
  }
  return 2;
}

TEST(TransformFaults, a_killed_rank_is_named_by_all_others) {
  for (std::string const transform : {"ddp", "sharded"}) {
    for (std::string const where : {"forward 0", "forward 2", "backward 2", "backward 0"}) {
      SCOPED_TRACE(transform + " " + where);
      auto const job = run_ranks(3, "training_that_loses_a_rank", {.arguments = {transform, where}});
      EXPECT_EQ(job.ranks[1].signal, SIGKILL);
      EXPECT_TRUE(job.ranks[0].ok() && job.ranks[2].ok()) << job.text();
      EXPECT_THAT(job.leaks, testing::IsEmpty());
    }
  }
}

}  // namespace
}  // namespace crossrank::test
