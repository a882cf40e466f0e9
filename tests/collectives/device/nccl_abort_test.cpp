#include <csignal>
#include <string>
#include <string_view>
#include <utility>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>

#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/faults/fault_report.hpp"
#include "tests/support/emulated_driver.hpp"

/// A group that ends on the CPU ends its work on the GPUs too. A rank gives up between the comparison of a call and its
/// own part on the GPU, when the other rank has enqueued the call.
namespace crossrank::test {
namespace {

volatile std::sig_atomic_t others_have_enqueued = 0;

/// Waits outside the library, which would advance the calls of this rank.
void await_signal() {
  while (others_have_enqueued == 0) ::usleep(1'000);
}

/// Rank 1 gives up the call. Argument: how.
void give_up(Collective const& world, Tensor& tensor, std::string_view way) {
  if (way == "fail") {
    constexpr int out_of_memory = 2;
    fail_call("cuEventRecord", 1, out_of_memory);
    EXPECT_THROW(world.all_reduce(tensor), Error);
    return;
  }
  auto request = world.iall_reduce(tensor);
  await_signal();
  if (way == "abort") world.abort("rank 1 has lost interest");
  if (way == "cancel") request.cancel();
  // With "drop", the destructor gives it up.
}

CROSSRANK_RANK_SCENARIO(nccl_end_on_the_cpu) {
  std::signal(SIGUSR1, [](int) { others_have_enqueued = 1; });
  return end_with_verdict(self, [&] {
    // Then a started call is not enqueued before all ranks have made it.
    auto const world = connect({.backend = "shm", .timeout = long_timeout, .check = CheckLevel::collective});
    auto tensor = filled(world, 1'000);
    world.all_reduce(tensor);
    current_stream(default_device()).synchronize();
    world.barrier();
    if (self.rank == 1) {
      give_up(world, tensor, self.arguments.at(0));
      await_abort();  // a rank that leaves would be noticed anyway
      return;
    }
    world.all_reduce(tensor);
    self.say("enqueued");
    current_stream(default_device()).synchronize();
  });
}

class NcclAbort : public testing::TestWithParam<std::pair<char const*, char const*>> {};

TEST_P(NcclAbort, of_the_group_on_the_cpu_ends_the_streams_of_the_others) {
  auto const& [way, text] = GetParam();
  auto options = gpu_ranks();
  options.arguments = {way};
  options.signals = {{.rank = 1, .signal = SIGUSR1, .marker = "enqueued", .marker_rank = 0}};
  auto const job = run_ranks(2, "nccl_end_on_the_cpu", std::move(options));
  EXPECT_EQ(verdict_of(job.ranks.at(1)).code, "ok") << job.text();
  auto const verdict = verdict_of(job.ranks.at(0));
  EXPECT_EQ(verdict.code, "peer_lost") << job.text();
  EXPECT_TRUE(verdict.blames_only(1)) << job.text();
  EXPECT_THAT(verdict.text, testing::HasSubstr(text)) << job.text();
  EXPECT_LT(verdict.milliseconds, allowance.count()) << job.text();
}

INSTANTIATE_TEST_SUITE_P(Ways, NcclAbort,
                         testing::Values(std::pair("drop", "rank 1 dropped the Request of its iall_reduce"),
                                         std::pair("cancel", "rank 1 cancelled its iall_reduce"),
                                         std::pair("abort", "rank 1 has lost interest"),
                                         std::pair("fail", "rank 1 failed in the middle of a call")));

}  // namespace
}  // namespace crossrank::test
