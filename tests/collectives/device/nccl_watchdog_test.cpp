#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <sys/syscall.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>

#include "collectives/device_transport/device_watchdog.hpp"
#include "collectives/nccl/nccl_transport.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/collectives/device/gpu_tensors.hpp"
#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/faults/fault_report.hpp"
#include "tests/support/emulated_driver.hpp"

/// How the ranks of a group learn that a collective on their GPUs cannot end.
namespace crossrank::test {
namespace {

Collective connect_unchecked_rank() {
  return connect({.backend = "shm", .timeout = step_timeout, .check = CheckLevel::off});
}

// ---------------------------------------------------------------- deaths

/// Arguments: the call at which the rank dies, and that rank.
CROSSRANK_RANK_SCENARIO(nccl_death) {
  return end_with_verdict(self, [&] {
    auto const world = connect_gpu_rank();
    auto tensor = filled(world, 100'000);
    world.barrier();
    if (self.rank == std::atoi(self.arguments.at(1).c_str())) fail_call(self.arguments.at(0).c_str(), 1, -SIGKILL);
    for (;;) {
      note_progress();
      world.all_reduce(tensor);
      current_stream(default_device()).synchronize();
    }
  });
}

class NcclDeath : public testing::TestWithParam<std::tuple<char const*, int>> {};

TEST_P(NcclDeath, is_the_same_error_on_all_survivors) {
  auto const [call, victim] = GetParam();
  auto options = gpu_ranks();
  options.arguments = {call, std::to_string(victim)};
  auto const job = run_ranks(3, "nccl_death", std::move(options));
  expect_death_is_told(job, victim);
}

INSTANTIATE_TEST_SUITE_P(Calls, NcclDeath,
                         testing::Values(std::tuple("ncclGetUniqueId", 0),         // exchange of the id
                                         std::tuple("ncclCommInitRankConfig", 0),  // making the communicator
                                         std::tuple("ncclCommInitRankConfig", 2),
                                         std::tuple("ncclCommGetAsyncError", 1),                          //
                                         std::tuple("ncclAllReduce", 0),                                  // enqueue
                                         std::tuple("ncclAllReduce", 2), std::tuple("nccl_kernel", 1)));  // execution

/// A rank dies while the others have enqueued a call that needs it. Argument: how they learn it.
CROSSRANK_RANK_SCENARIO(nccl_death_in_a_kernel) {
  return end_with_verdict(self, [&] {
    auto const world = connect_unchecked_rank();
    auto tensor = filled(world, 1'000);
    world.all_reduce(tensor);
    world.barrier();
    if (self.rank == 1) ::kill(::getpid(), SIGKILL);
    note_progress();
    auto request = world.iall_reduce(tensor);
    auto const& way = self.arguments.at(0);
    if (way == "synchronize") current_stream(default_device()).synchronize();
    if (way == "copy") static_cast<void>(tensor.to(Device::cpu()));
    while (way == "test" && !request.test()) std::this_thread::yield();
    for (int i = 0; way == "call" && i < 1'000'000; ++i) world.all_reduce(tensor);
  });
}

class NcclDeathInAKernel : public testing::TestWithParam<char const*> {};

TEST_P(NcclDeathInAKernel, ends_the_stream_and_names_the_rank) {
  auto options = gpu_ranks();
  options.arguments = {GetParam()};
  auto const job = run_ranks(3, "nccl_death_in_a_kernel", std::move(options));
  expect_death_is_told(job, 1);
}

INSTANTIATE_TEST_SUITE_P(Ways, NcclDeathInAKernel, testing::Values("synchronize", "copy", "test", "call"));

// ---------------------------------------------------------------- deadlines and departures

/// A call that rank 1 has enqueued does not start there, because its stream is blocked.
CROSSRANK_RANK_SCENARIO(nccl_blocked_stream) {
  auto const world = connect({.backend = "shm", .timeout = short_timeout, .check = CheckLevel::off});
  auto tensor = filled(world, 1'000);
  world.all_reduce(tensor);
  current_stream(default_device()).synchronize();
  if (self.rank == 1) block_stream(current_stream(default_device()));
  auto request = world.iall_reduce(tensor);
  say_verdict(self, "end", [&] {
    while (!request.test()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  // The stream of rank 1 never ends, so its threads cannot be joined. The thread sanitizer would report that at _exit.
  if (self.rank == 1) ::syscall(SYS_exit_group, 0);
  return 0;
}

TEST(NcclDeadline, names_the_rank_whose_stream_has_not_reached_the_call) {
  auto const job = run_ranks(3, "nccl_blocked_stream", gpu_ranks());
  auto const verdict = expect_one_verdict(job, {}, "end", short_timeout);
  EXPECT_EQ(verdict.code, "timeout") << job.text();
  EXPECT_TRUE(verdict.blames_only(1)) << job.text();
}

/// NCCL waits a few seconds for the end of a communicator. The work of a group may take longer.
CROSSRANK_RANK_SCENARIO(nccl_group_ends_before_its_work) {
  auto const world = connect({.backend = "shm", .check = CheckLevel::off});
  auto tensor = filled(world, 1'000);
  std::optional<HeldStream> held;
  std::thread release;
  {
    auto const group = world.split({{0, 1, 2}});
    group.all_reduce(tensor);
    current_stream(default_device()).synchronize();
    if (self.rank == 1) {
      held.emplace(current_stream(default_device()).native(), default_device().index);
      release = std::thread([&held] {
        std::this_thread::sleep_for(std::chrono::seconds(6));
        held->release();
      });
    }
    group.all_reduce(tensor);
  }
  current_stream(default_device()).synchronize();
  EXPECT_EQ(values(tensor), std::vector<float>(1'000, 3 * (1 + 2 + 3)));
  if (release.joinable()) release.join();
  return end_gpu_rank();
}

TEST(NcclEnd, waits_for_the_work_of_a_group) { expect_job_ok(3, "nccl_group_ends_before_its_work"); }

/// Rank 1 does not make a call that the others have enqueued.
CROSSRANK_RANK_SCENARIO(nccl_missing_call) {
  return end_with_verdict(self, [&] {
    auto const world = connect({.backend = "shm", .timeout = short_timeout, .check = CheckLevel::off});
    auto tensor = filled(world, 1'000);
    world.all_reduce(tensor);
    current_stream(default_device()).synchronize();
    if (self.rank != 1) {
      world.all_reduce(tensor);
      current_stream(default_device()).synchronize();
      return;
    }
    // It computes meanwhile, and finds the failure at its next call.
    await_abort();
    world.all_reduce(tensor);
  });
}

TEST(NcclDeadline, names_the_rank_that_has_not_enqueued_the_call) {
  auto options = gpu_ranks();
  auto const job = run_ranks(3, "nccl_missing_call", std::move(options));
  auto const verdict = expect_one_verdict(job, {}, "end", short_timeout);
  EXPECT_EQ(verdict.code, "timeout") << job.text();
  EXPECT_TRUE(verdict.blames_only(1)) << job.text();
  EXPECT_THAT(verdict.text, testing::HasSubstr("all_reduce")) << job.text();
}

/// NCCL does not enqueue the call of the others as long as rank 1 does not make it.
CROSSRANK_RANK_SCENARIO(nccl_call_in_progress) {
  return end_with_verdict(self, [&] {
    auto const world = connect({.backend = "shm", .timeout = short_timeout, .check = CheckLevel::off});
    auto tensor = filled(world, 1'000);
    world.all_reduce(tensor);
    current_stream(default_device()).synchronize();
    if (self.rank != 1) ::setenv("EMULATED_NCCL_IN_PROGRESS", "for_ever", 1);
    if (self.rank == 1) await_abort();
    world.all_reduce(tensor);
  });
}

TEST(NcclDeadline, names_the_rank_that_keeps_a_call_in_progress) {
  auto const job = run_ranks(3, "nccl_call_in_progress", gpu_ranks());
  auto const verdict = expect_one_verdict(job, {}, "end", short_timeout);
  EXPECT_EQ(verdict.code, "timeout") << job.text();
  EXPECT_TRUE(verdict.blames_only(1)) << job.text();
  EXPECT_THAT(verdict.text, testing::HasSubstr("rank 1 did not begin it")) << job.text();
}

/// The rank whose own work blocks its stream waits for that stream.
CROSSRANK_RANK_SCENARIO(nccl_wait_for_a_blocked_stream) {
  auto const world = connect({.backend = "shm", .check = CheckLevel::off});
  auto tensor = filled(world, 1'000);
  world.all_reduce(tensor);
  current_stream(default_device()).synchronize();
  if (self.rank == 1) block_stream(current_stream(default_device()));
  world.all_reduce(tensor);
  say_verdict(self, "end", [&] { current_stream(default_device()).synchronize(); });
  if (self.rank == 1) ::syscall(SYS_exit_group, 0);  // as above
  return 0;
}

TEST(NcclDeadline, is_told_to_the_rank_whose_own_work_blocks_its_stream) {
  auto options = gpu_ranks();
  options.environment["CROSSRANK_TIMEOUT"] = std::to_string(short_timeout.count()) + "ms";
  auto const job = run_ranks(3, "nccl_wait_for_a_blocked_stream", std::move(options));
  auto const verdict = expect_one_verdict(job, {}, "end", short_timeout);
  EXPECT_EQ(verdict.code, "timeout") << job.text();
  EXPECT_TRUE(verdict.blames_only(1)) << job.text();
}

TEST(NcclDeadline, ends_a_wait_of_the_host_within_the_same_limit) {
  auto options = gpu_ranks();
  options.environment["CROSSRANK_TIMEOUT"] = std::to_string(short_timeout.count()) + "ms";
  auto const job = run_ranks(3, "nccl_missing_call", std::move(options));
  auto const verdict = expect_one_verdict(job, {}, "end", short_timeout);
  EXPECT_EQ(verdict.code, "timeout") << job.text();
  EXPECT_TRUE(verdict.blames_only(1)) << job.text();
}

/// Rank 1 is stopped for longer than the timeout while the others have enqueued a call.
CROSSRANK_RANK_SCENARIO(nccl_stopped_rank) {
  auto const world = connect({.backend = "shm", .timeout = short_timeout, .check = CheckLevel::off});
  auto const other_group = world.split({{0, 1, 2}});
  auto tensor = filled(world, 1'000);
  world.all_reduce(tensor);
  current_stream(default_device()).synchronize();
  world.barrier();
  say_verdict(self, "end", [&] {
    self.say("late");
    if (self.rank == 1) await_abort();
    note_progress();
    world.all_reduce(tensor);
    current_stream(default_device()).synchronize();
  });
  self.say("failed");
  say_verdict(self, "other_group", [&] { other_group.barrier(); });
  return 0;
}

TEST(NcclDeadline, names_a_stopped_rank_which_learns_it_too_and_continues) {
  auto options = gpu_ranks();
  options.signals = {{.rank = 1, .signal = SIGSTOP, .marker = "late"},
                     {.rank = 1, .signal = SIGCONT, .marker = "failed", .marker_rank = 0}};
  auto const job = run_ranks(3, "nccl_stopped_rank", std::move(options));
  auto const verdict = expect_one_verdict(job, {}, "end", short_timeout);
  EXPECT_EQ(verdict.code, "timeout") << job.text();
  EXPECT_TRUE(verdict.blames_only(1)) << job.text();
  EXPECT_EQ(expect_one_verdict(job, {}, "other_group").code, "ok") << job.text();
}

/// A kernel that all ranks have enqueued does not end.
CROSSRANK_RANK_SCENARIO(nccl_hung_kernel) {
  return end_with_verdict(self, [&] {
    auto const world = connect({.backend = "shm", .timeout = short_timeout, .check = CheckLevel::off});
    auto tensor = filled(world, 1'000);
    world.all_reduce(tensor);
    current_stream(default_device()).synchronize();
    world.all_reduce(tensor);
    current_stream(default_device()).synchronize();
  });
}

TEST(NcclDeadline, names_all_ranks_when_all_have_enqueued_the_call) {
  auto options = gpu_ranks();
  options.rank_environment[2]["EMULATED_GPU_HANG"] = "2";
  auto const job = run_ranks(3, "nccl_hung_kernel", std::move(options));
  auto const verdict = expect_one_verdict(job, {}, "end", short_timeout);
  EXPECT_EQ(verdict.code, "timeout") << job.text();
  EXPECT_THAT(verdict.blames, testing::ElementsAre(0, 1, 2)) << job.text();
}

/// Rank 1 makes another call under the same number, which only the watchdogs can see.
CROSSRANK_RANK_SCENARIO(nccl_different_calls) {
  auto const world = connect({.backend = "shm", .timeout = short_timeout, .check = CheckLevel::off});
  auto tensor = filled(world, 1'000);
  world.all_reduce(tensor);
  current_stream(default_device()).synchronize();
  say_verdict(self, "end", [&] {
    if (self.rank == 1) {
      world.all_reduce(tensor);
    } else {
      world.broadcast(tensor, {1});  // waits for the root, as the root does for the others
    }
    current_stream(default_device()).synchronize();
  });
  return 0;
}

TEST(NcclDeadline, names_the_rank_that_made_another_call) {
  auto const job = run_ranks(3, "nccl_different_calls", gpu_ranks());
  auto const verdict = expect_one_verdict(job, {}, "end", short_timeout);
  EXPECT_EQ(verdict.code, "timeout") << job.text();
  EXPECT_TRUE(verdict.blames_only(1)) << job.text();
  EXPECT_THAT(verdict.text, testing::HasSubstr("rank 1 made all_reduce; ranks 0, 2 made broadcast of root 1"))
      << job.text();
}

/// Rank 1 leaves the group without a call that the others have enqueued.
CROSSRANK_RANK_SCENARIO(nccl_departure) {
  return end_with_verdict(self, [&] {
    auto const world = connect_unchecked_rank();
    auto group = world.split({{0, 1, 2}});
    auto tensor = filled(world, 1'000);
    group.all_reduce(tensor);
    current_stream(default_device()).synchronize();
    if (self.rank == 1) {
      group = {};
    } else {
      group.all_reduce(tensor);
      current_stream(default_device()).synchronize();
    }
  });
}

TEST(NcclDeparture, without_a_call_is_an_error_of_the_others) {
  auto const job = run_ranks(3, "nccl_departure", gpu_ranks());
  for (int const rank : {0, 2}) {
    auto const verdict = verdict_of(at_rank(job.ranks, rank));
    EXPECT_EQ(verdict.code, "peer_lost") << job.text();
    EXPECT_TRUE(verdict.blames_only(1)) << job.text();
  }
  EXPECT_EQ(verdict_of(job.ranks[1]).code, "ok") << job.text();
}

/// Ranks drop a group at different times, after the same calls.
CROSSRANK_RANK_SCENARIO(nccl_orderly_departure) {
  return end_with_verdict(self, [&] {
    auto const world = connect_gpu_rank();
    auto group = world.split({{0, 1, 2}});
    auto tensor = filled(world, 10);
    group.all_reduce(tensor);
    if (self.rank == 1) group = {};
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    if (!group.connected()) return world.barrier();
    EXPECT_EQ(values(tensor), std::vector<float>(10, 6));
    world.barrier();
  });
}

TEST(NcclDeparture, after_the_same_calls_disturbs_nobody) {
  auto const job = run_ranks(3, "nccl_orderly_departure", gpu_ranks());
  EXPECT_EQ(expect_one_verdict(job).code, "ok") << job.text();
}

/// Rank 1 gives up and leaves at once, before the thread of its watchdog may have run.
CROSSRANK_RANK_SCENARIO(nccl_departure_with_a_reason) {
  auto const world = connect_gpu_rank();
  auto const transport = world.transport()->split({spi::OpKind::split, 1}, all_ranks(2), "watch", {});
  auto& factory = nccl::transport_factory();
  auto id = self.rank == 0 ? factory.draw_id() : spi::DeviceTransportId{};
  world.broadcast(std::span(reinterpret_cast<std::uint8_t*>(id.data()), id.size()));
  auto const joined = factory.join(id, {.device = default_device(), .rank = self.rank, .ranks = 2}, step_timeout, {});
  auto watchdog = std::make_unique<device::DeviceWatchdog>(
      transport, device::DeviceWatchdog::Watched{.group = "world", .transport = factory.title()}, step_timeout);
  world.barrier();
  if (self.rank == 1) {
    watchdog->start(*joined, default_device());
    watchdog->request_failure("no memory for the launch");
    watchdog.reset();
  }
  world.barrier();
  if (self.rank == 0) {
    try {
      watchdog->poll();
      ADD_FAILURE() << "no error";
    } catch (PeerLostError const& e) {
      EXPECT_THAT(e.info().failed_ranks, testing::ElementsAre(1));
      EXPECT_THAT(e.what(), testing::HasSubstr("no memory for the launch"));
    }
  }
  joined->abort();
  world.barrier();
  return 0;
}

TEST(NcclDeparture, of_a_rank_that_gives_up_tells_its_reason) { expect_job_ok(2, "nccl_departure_with_a_reason"); }

// ---------------------------------------------------------------- refusals

CROSSRANK_RANK_SCENARIO(nccl_refused_call) {
  auto const world = connect_unchecked_rank();
  auto tensor = filled(world, 1'000);
  expect_refused(self.rank, "ncclAllReduce", [&] {
    world.all_reduce(tensor);
    world.all_reduce(tensor);
    current_stream(default_device()).synchronize();
  });
  return 0;
}

TEST(NcclRefusal, of_a_call_on_one_rank_ends_it_on_the_others) {
  auto options = gpu_ranks();
  options.rank_environment[1]["EMULATED_GPU_FAIL"] = "ncclAllReduce:2:3";
  expect_job_ok(2, "nccl_refused_call", std::move(options));
}

}  // namespace
}  // namespace crossrank::test
