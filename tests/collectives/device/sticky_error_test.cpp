#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/faults/fault_report.hpp"
#include "tests/support/emulated_driver.hpp"

/// A kernel of NCCL fails on one rank, so that the process has lost its GPU. The kernels of the other ranks would wait
/// for it forever.
namespace crossrank::test {
namespace {

constexpr int failing_rank = 1;

CROSSRANK_RANK_SCENARIO(nccl_sticky_error) {
  auto const world = connect({.backend = "shm", .timeout = long_timeout});
  auto tensor = filled(world, 1'000);
  world.all_reduce(tensor);
  EXPECT_EQ(world.device_backend(), "nccl");
  current_stream(default_device()).synchronize();
  world.barrier();
  say_verdict(self, "failed", [&] {
    world.all_reduce(tensor);
    current_stream(default_device()).synchronize();
  });
  await_abort();  // the rank makes no further call that would tell the others
  say_verdict(self, "next", [&] { world.all_reduce(tensor); });
  return 0;
}

TEST(NcclStickyError, ends_the_group_on_all_ranks_and_names_the_rank) {
  auto options = gpu_ranks();
  options.environment["EMULATED_GPU_EXIT_CODE"] = "0";  // a device that has failed gives nothing back
  options.rank_environment[failing_rank]["EMULATED_GPU_FAIL"] = "kernel:2:719";
  auto const job = run_ranks(3, "nccl_sticky_error", std::move(options));
  for (int rank = 0; rank < 3; ++rank) {
    auto const& outcome = job.ranks.at(as_size(rank));
    EXPECT_TRUE(outcome.ok()) << job.text();
    auto const failed = verdict_of(outcome, "failed");
    EXPECT_EQ(failed.code, rank == failing_rank ? "backend" : "peer_lost") << job.text();
    EXPECT_LT(failed.milliseconds, allowance.count()) << job.text();
    if (rank != failing_rank) {
      EXPECT_TRUE(failed.blames_only(failing_rank)) << job.text();
    }
    auto const next = verdict_of(outcome, "next");
    EXPECT_TRUE(next.blames_only(failing_rank)) << job.text();
    EXPECT_LT(next.milliseconds, allowance.count()) << job.text();
  }
}

/// NCCL itself finds the error when a call is made.
CROSSRANK_RANK_SCENARIO(nccl_sticky_error_at_the_call) {
  auto const world = connect({.backend = "shm", .timeout = long_timeout});
  auto tensor = filled(world, 1'000);
  world.all_reduce(tensor);
  current_stream(default_device()).synchronize();
  world.barrier();
  if (world.rank() == failing_rank) fail_call("cuEventRecord", 1, 719);
  say_verdict(self, "failed", [&] {
    world.all_reduce(tensor);
    current_stream(default_device()).synchronize();
  });
  return 0;
}

TEST(NcclStickyError, that_a_call_finds_ends_it_on_all_ranks) {
  auto options = gpu_ranks();
  auto const job = run_ranks(3, "nccl_sticky_error_at_the_call", std::move(options));
  for (int rank = 0; rank < 3; ++rank) {
    auto const failed = verdict_of(job.ranks.at(as_size(rank)), "failed");
    EXPECT_EQ(failed.code, rank == failing_rank ? "backend" : "peer_lost") << job.text();
    if (rank != failing_rank) {
      EXPECT_TRUE(failed.blames_only(failing_rank)) << job.text();
    }
  }
}

}  // namespace
}  // namespace crossrank::test
