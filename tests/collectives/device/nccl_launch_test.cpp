#include <chrono>
#include <csignal>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/faults/fault_report.hpp"

/// Launches that block, because the GPU holds as much work as it can. NCCL before 2.23 launches in the calling thread.
namespace crossrank::test {
namespace {

/// Prints "full" as soon as a launch of this process blocks.
void report_full_queue(RankSelf const& self) {
  std::thread([&self] {
    while (emulated_count("full_launch_queue") == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    note_progress();
    self.say("full");
  }).detach();
}

/// The stream of rank 0 waits for rank 1, and rank 0 launches until its queue is full. Argument: what rank 1 does.
CROSSRANK_RANK_SCENARIO(nccl_full_launch_queue) {
  bool const dies = self.arguments.at(0) == "dies";
  return end_with_verdict(self, [&] {
    auto const world =
        connect({.backend = "shm", .timeout = dies ? long_timeout : short_timeout, .check = CheckLevel::off});
    auto tensor = filled(world, 1'000);
    world.all_reduce(tensor);
    current_stream(default_device()).synchronize();
    world.barrier();
    if (self.rank == 1) {
      await_abort();  // until it is killed, if it dies
    } else {
      report_full_queue(self);
    }
    for (int i = 0; i < 1'000; ++i) world.all_reduce(tensor);
  });
}

class NcclFullLaunchQueue : public testing::TestWithParam<EmulatedNccl> {
 protected:
  static JobOutcome run(std::string_view way) {
    auto options = gpu_ranks(GetParam());
    options.arguments = {std::string(way)};
    options.rank_environment[0]["EMULATED_GPU_LAUNCH_QUEUE"] = "16";
    if (way == "dies") options.signals = {{.rank = 1, .signal = SIGKILL, .marker = "full", .marker_rank = 0}};
    auto job = run_ranks(2, "nccl_full_launch_queue", std::move(options));
    EXPECT_NE(job.ranks.at(0).out.find("full"), std::string::npos) << job.text();
    return job;
  }
};

TEST_P(NcclFullLaunchQueue, hides_no_death) {
  auto const job = run("dies");
  expect_death_is_told(job, 1);
}

TEST_P(NcclFullLaunchQueue, hides_no_deadline) {
  auto const job = run("is late");
  auto const verdict = expect_one_verdict(job, {}, "end", short_timeout);
  EXPECT_EQ(verdict.code, "timeout") << job.text();
  EXPECT_TRUE(verdict.blames_only(1)) << job.text();
}

INSTANTIATE_TEST_SUITE_P(Versions, NcclFullLaunchQueue,
                         testing::Values(EmulatedNccl::newest, EmulatedNccl::v2_22, EmulatedNccl::v2_18));

}  // namespace
}  // namespace crossrank::test
