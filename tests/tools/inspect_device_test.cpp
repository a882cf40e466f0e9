// Tests `crossrank inspect` on jobs that hang in calls on their GPUs, which are emulated.
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <crossrank/collective.hpp>
#include <crossrank/cuda.hpp>
#include <crossrank/json.hpp>

#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/support/process_ranks.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/timeouts.hpp"
#include "tests/tools/command_run.hpp"

namespace crossrank::test {
namespace {

using testing::HasSubstr;

[[noreturn]] void stay() {
  for (;;) ::pause();
}

/// Makes one all_reduce, then does what its argument says, and stays. Rank 1 is the one that the others wait for.
CROSSRANK_RANK_SCENARIO(hang_on_gpus) {
  auto const& how = self.arguments.at(0);
  auto const world = connect({.backend = "shm", .timeout = step_timeout, .check = CheckLevel::off});
  auto tensor = filled(world, 1'000);
  world.all_reduce(tensor);
  current_stream(default_device()).synchronize();
  world.barrier();
  self.say("met");
  if (how == "missing" && self.rank == 1) stay();
  if (how == "behind" && self.rank == 1) block_stream(current_stream(default_device()));
  if (how == "gather") {
    auto all = Tensor::empty({3, 1'000}, Dtype::f32, default_device());
    if (self.rank != 1) world.all_gather(all, tensor);
    stay();
  }
  if (how == "message") {
    if (self.rank == 0) world.recv(tensor, 1);
    stay();
  }
  if (how == "graph") {
    auto const stream = Stream::create(default_device());
    auto const graph = cuda::Graph::capture(stream, [&] { world.broadcast(tensor, {1}); });
    if (self.rank != 1) graph.replay(stream);
    stay();
  }
  world.broadcast(tensor, {1});
  stay();
}

/// Inspects the job until it reaches the wanted state, because nothing reports that a stream waits.
Json inspect_until(std::vector<std::string> const& more, std::function<bool(Json const&)> const& wanted) {
  std::vector<std::string> arguments{"inspect", "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (;;) {
    auto const jobs = Json::parse(run_command(arguments).out).at("jobs");
    if (jobs.size() == 1 && wanted(jobs.at(0))) return jobs.at(0);
    if (std::chrono::steady_clock::now() > end) {
      ADD_FAILURE() << "the job did not reach the wanted state:\n" << jobs.dump(2);
      return jobs;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

std::vector<std::string> of_job(ProcessRanks const& job) { return {"--job", job.job_id()}; }

void await_ranks(ProcessRanks& job) {
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(job.wait_for_line(rank, "met")) << "rank " << rank;
}

RankOptions hanging(std::string how) {
  auto options = gpu_ranks();
  options.arguments = {std::move(how)};
  return options;
}

std::string stage_of(Json const& job, std::size_t rank) {
  auto const& operations = job.at("ranks").at(rank).at("device_operations");
  return operations.empty() ? "" : operations.back().at("stage").get<std::string>();
}

/// Returns whether ranks 0 and 2 hang in the broadcast, which is the second call, and every rank has noted the end of
/// the first one.
bool waits_for_rank_1(Json const& job) {
  auto const& group = job.at("groups").at(0);
  if (!group.contains("device_call") || group.at("device_call").at("sequence") != 2) return false;
  return std::ranges::all_of(std::array<std::size_t, 2>{0, 2}, [&](std::size_t rank) {
    auto const& operations = job.at("ranks").at(rank).at("device_operations");
    return stage_of(job, rank) == "started" && operations.back().at("sequence") == 2;
  });
}

void expect_missing_rank_1(Json const& job) {
  auto const& call = job.at("groups").at(0).at("device_call");
  EXPECT_EQ(call.at("name"), "broadcast");
  EXPECT_EQ(call.at("path"), "nccl");
  EXPECT_EQ(call.at("sequence"), 2);
  EXPECT_EQ(call.at("started"), (Json{0, 2}));
  EXPECT_EQ(call.at("missing"), Json{1});
  auto const& hung = job.at("ranks").at(0).at("device_operations").back();
  EXPECT_EQ(hung.at("name"), "broadcast");
  EXPECT_EQ(hung.at("group"), "world");
  EXPECT_EQ(hung.at("group_ranks"), 3);
  EXPECT_EQ(hung.at("root"), 1);
  EXPECT_EQ(hung.at("sequence"), 2);
  EXPECT_EQ(hung.at("bytes"), 4'000);
  EXPECT_EQ(hung.at("device"), 0);
  EXPECT_EQ(hung.at("stream"), "0x0") << "the default stream";
  EXPECT_NE(hung.at("communicator"), "0x0");
  EXPECT_TRUE(hung.contains("started_age_s"));
  EXPECT_FALSE(hung.contains("ended_age_s"));
  auto const& before = job.at("ranks").at(1).at("device_operations").back();
  EXPECT_EQ(before.at("name"), "all_reduce");
  EXPECT_EQ(before.at("sequence"), 1);
  EXPECT_EQ(before.at("stage"), "ended");
  EXPECT_TRUE(before.contains("ended_age_s"));
}

TEST(InspectDevice, names_the_rank_that_has_not_enqueued_a_call) {
  ProcessRanks job(3, "hang_on_gpus", hanging("missing"));
  await_ranks(job);
  auto const seen = inspect_until(of_job(job), waits_for_rank_1);
  expect_missing_rank_1(seen);
  EXPECT_EQ(seen.at("look_first_at"), Json{1});
  EXPECT_EQ(seen.at("ranks").at(0).at("waits_for"), Json{1});
  auto const text = run_command({"inspect", "--job", job.job_id()});
  EXPECT_THAT(text.out, HasSubstr("group \"world\" on its GPUs: broadcast (nccl call 2); started: ranks 0, 2; not "
                                  "enqueued: rank 1"));
  EXPECT_THAT(text.out, HasSubstr("started  broadcast of root rank 1 on cuda:0, nccl call 2 in \"world\" of 3 ranks, "
                                  "4000 bytes"));
  EXPECT_THAT(text.out, HasSubstr("ended    all_reduce on cuda:0, nccl call 1 in \"world\""));
}

TEST(InspectDevice, names_a_call_as_the_program_does) {
  for (auto const* const path : {"nccl", "staged"}) {
    auto options = hanging("gather");
    options.environment["CROSSRANK_DEVICE"] = path;
    ProcessRanks job(3, "hang_on_gpus", std::move(options));
    await_ranks(job);
    auto const seen = inspect_until(of_job(job), waits_for_rank_1);
    EXPECT_EQ(seen.at("groups").at(0).at("device_call").at("name"), "all_gather");
    EXPECT_EQ(seen.at("ranks").at(0).at("device_operations").back().at("name"), "all_gather");
    auto const text = run_command({"inspect", "--job", job.job_id()});
    EXPECT_THAT(text.out, HasSubstr("on its GPUs: all_gather (" + std::string(path) + " call 2)"));
    EXPECT_THAT(text.out, HasSubstr("started  all_gather on cuda:0"));
  }
}

TEST(InspectDevice, tells_an_enqueued_call_from_one_that_has_started) {
  ProcessRanks job(3, "hang_on_gpus", hanging("behind"));
  await_ranks(job);
  auto const seen = inspect_until(of_job(job), [](Json const& now) {
    auto const& broadcast = now.at("ranks").at(1).at("device_operations").back();
    return waits_for_rank_1(now) && broadcast.at("sequence") == 2 && broadcast.at("stage") == "enqueued";
  });
  auto const& call = seen.at("groups").at(0).at("device_call");
  EXPECT_EQ(call.at("started"), (Json{0, 2}));
  EXPECT_EQ(call.at("enqueued"), Json{1});
  EXPECT_TRUE(call.at("missing").empty());
  EXPECT_EQ(stage_of(seen, 1), "enqueued");
}

TEST(InspectDevice, shows_calls_that_go_through_host_memory) {
  auto options = hanging("missing");
  options.environment["CROSSRANK_DEVICE"] = "staged";
  ProcessRanks job(3, "hang_on_gpus", std::move(options));
  await_ranks(job);
  auto const seen = inspect_until(of_job(job), waits_for_rank_1);
  auto const& call = seen.at("groups").at(0).at("device_call");
  EXPECT_EQ(call.at("path"), "staged");
  EXPECT_EQ(call.at("sequence"), 2);
  EXPECT_EQ(call.at("missing"), Json{1});
  EXPECT_EQ(seen.at("ranks").at(0).at("device_operations").back().at("communicator"), "0x0");
  EXPECT_EQ(stage_of(seen, 1), "ended");
}

TEST(InspectDevice, shows_replays_of_graphs) {
  ProcessRanks job(3, "hang_on_gpus", hanging("graph"));
  await_ranks(job);
  auto const seen = inspect_until(of_job(job), waits_for_rank_1);
  auto const& call = seen.at("groups").at(0).at("device_call");
  EXPECT_EQ(call.at("path"), "graph");
  EXPECT_EQ(call.at("name"), "broadcast");
  EXPECT_EQ(call.at("sequence"), 2);
  EXPECT_EQ(call.at("missing"), Json{1});
  EXPECT_NE(seen.at("ranks").at(0).at("device_operations").back().at("stream"), "0x0");
}

TEST(InspectDevice, shows_messages_with_their_partner) {
  ProcessRanks job(3, "hang_on_gpus", hanging("message"));
  await_ranks(job);
  auto const seen = inspect_until(of_job(job), [](Json const& now) {
    auto const& operations = now.at("ranks").at(0).at("device_operations");
    // The call before is seen to have ended some time after its end.
    return operations.back().at("path") == "message" && operations.back().at("stage") == "started" &&
           !now.at("groups").at(0).contains("device_call");
  });
  auto const& receive = seen.at("ranks").at(0).at("device_operations").back();
  EXPECT_EQ(receive.at("name"), "recv");
  EXPECT_EQ(receive.at("root"), 1);
}

TEST(InspectDevice, reads_the_operations_of_a_dead_job) {
  TemporaryDirectory const directory;
  auto options = hanging("missing");
  options.environment["CROSSRANK_FLIGHT_DIR"] = directory.path().string();
  ProcessRanks job(3, "hang_on_gpus", std::move(options));
  await_ranks(job);
  static_cast<void>(inspect_until(of_job(job), waits_for_rank_1));
  // Stop all ranks first, so that none notices the death of another one.
  for (int rank = 0; rank < 3; ++rank) job.signal(rank, SIGSTOP);
  static_cast<void>(inspect_until(of_job(job), [](Json const& now) {
    auto const& all = now.at("ranks");
    return std::all_of(all.begin(), all.end(), [](Json const& rank) { return rank.at("status") == "stopped"; });
  }));
  for (int rank = 0; rank < 3; ++rank) job.signal(rank, SIGKILL);
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(job.wait_for_exit(rank));

  auto arguments = of_job(job);
  arguments.insert(arguments.end(), {"--flight", directory.path().string()});
  auto const seen = inspect_until(arguments, [](Json const&) { return true; });
  EXPECT_EQ(seen.at("running"), false);
  expect_missing_rank_1(seen);
}

}  // namespace
}  // namespace crossrank::test
