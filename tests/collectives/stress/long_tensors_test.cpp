#include <chrono>
#include <cstdlib>

#include <gtest/gtest.h>

#include "tests/collectives/stress/long_tensors.hpp"
#include "tests/support/process_ranks.hpp"

namespace crossrank::test {
namespace {

CROSSRANK_RANK_SCENARIO(long_tensors) {
  auto world =
      connect({.backend = "shm", .timeout = std::chrono::minutes(20), .job_id = std::getenv("CROSSRANK_JOB_ID")});
  move_long_tensors(world);
  world.close();
  return testing::Test::HasFailure() ? 1 : 0;
}

TEST(LongTensors, are_moved_between_processes_of_a_node) {
  if (auto const reason = no_memory_for_long_tensors(); !reason.empty()) GTEST_SKIP() << reason;
  auto const job = run_ranks(2, "long_tensors");
  EXPECT_TRUE(job.ok()) << job.text();
}

}  // namespace
}  // namespace crossrank::test
