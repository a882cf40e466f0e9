// A published state stays readable, however its rank ends. A reader gets the state, never "never wrote".
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/workspace/shared_memory_workspace.hpp>

#include "tests/faults/fault_report.hpp"

namespace crossrank::published_state_test {
namespace {

constexpr int leaver = 1;

void publish(SharedMemoryWorkspace& workspace, int rank) {
  workspace.write_configs_and_weights({{"rank", rank}}, {{"w", Tensor::scalar(rank + 7)}});
}

void expect_all(SharedMemoryWorkspace const& workspace, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    auto const state = workspace.read_configs_and_weights_from_rank(rank);
    if (!state) throw std::runtime_error("the state of rank " + std::to_string(rank) + " is lost");
    if (state->config.at("rank") != rank || state->weights.at("w").item<int>() != rank + 7)
      throw std::runtime_error("wrong state of rank " + std::to_string(rank));
  }
}

/// All ranks publish and pass a barrier. Rank 1 then ends as the argument says. The others notice it and read all
/// states.
CROSSRANK_RANK_SCENARIO(publish_and_lose_a_rank) {
  auto const way = self.arguments.at(0);
  return test::end_with_verdict(self, [&] {
    auto const world = connect(test::fault_options());
    std::optional<SharedMemoryWorkspace> workspace(world);
    publish(*workspace, self.rank);
    world.barrier();
    if (self.rank == leaver) {
      if (way == "return") return;
      if (way == "drop") workspace.reset();
      if (way == "exit" || way == "drop") std::exit(0);
      if (way == "kill") ::raise(SIGKILL);
      if (way == "throw") throw std::runtime_error("the tokenizer is missing");
      ::_exit(9);
    }
    try {
      world.barrier();
      throw std::runtime_error("the barrier passed without rank 1");
    } catch (PeerLostError const&) {
      expect_all(*workspace, self.world_size);
    }
  });
}

class FaultsPublishedState : public testing::TestWithParam<char const*> {};

TEST_P(FaultsPublishedState, outlives_its_writer) {
  auto const job = test::run_ranks(3, "publish_and_lose_a_rank", {.arguments = {GetParam()}});
  for (std::size_t const rank : {0U, 2U}) EXPECT_EQ(test::verdict_of(job.ranks.at(rank)).code, "ok") << job.text();
}

INSTANTIATE_TEST_SUITE_P(Ends, FaultsPublishedState,
                         testing::Values("return", "drop", "exit", "quick", "kill", "throw"),
                         [](auto const& way) { return std::string(way.param); });

/// Rank 1 dies. Rank 2 notices it first, and unwinding drops its workspace before rank 0 reads.
CROSSRANK_RANK_SCENARIO(unwind_before_another_reads) {
  sigset_t go_on;
  ::sigemptyset(&go_on);
  ::sigaddset(&go_on, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &go_on, nullptr);
  return test::end_with_verdict(self, [&] {
    auto const world = connect(test::fault_options());
    std::optional<SharedMemoryWorkspace> workspace(world);
    publish(*workspace, self.rank);
    world.barrier();
    if (self.rank == leaver) ::raise(SIGKILL);
    try {
      auto const unwound = self.rank == 2 ? std::exchange(workspace, std::nullopt) : std::nullopt;
      world.barrier();
    } catch (PeerLostError const&) {
      self.say("unwound");
    }
    int received = 0;
    ::sigwait(&go_on, &received);
    if (self.rank == 0) expect_all(*workspace, self.world_size);
  });
}

TEST(FaultsPublishedStates, outlive_a_handle_dropped_by_unwinding) {
  test::ProcessRanks ranks(3, "unwind_before_another_reads");
  for (int const rank : {0, 2}) ASSERT_TRUE(ranks.wait_for_line(rank, "unwound", std::chrono::seconds(120)));
  ranks.signal(0, SIGUSR1);
  EXPECT_TRUE(ranks.wait_for_exit(0, std::chrono::seconds(120)));
  ranks.signal(2, SIGUSR1);
  auto const job = ranks.wait();
  EXPECT_EQ(test::verdict_of(job.ranks.at(0)).code, "ok") << job.text();
}

}  // namespace
}  // namespace crossrank::published_state_test
