// Stopped ranks are slow, not dead. When they continue, they get the verdict of the group.
#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <crossrank/message_queue.hpp>

#include "lib/core/as_size.hpp"
#include "tests/faults/fault_report.hpp"
#include "tests/faults/fault_workload.hpp"

namespace crossrank {
namespace {

using test::ProcessRanks;
using testing::HasSubstr;
using testing::Not;

constexpr auto step_timeout = test::step_timeout;

/// Gathers over and over until something fails. Arguments: timeout in milliseconds, rounds (0: no end), the rank that
/// does not take part in the second round (-1: none).
CROSSRANK_RANK_SCENARIO(gather_repeatedly) {
  std::chrono::milliseconds const timeout(std::stol(self.arguments.at(0)));
  int const rounds = std::stoi(self.arguments.at(1));
  bool const stays_away = std::stoi(self.arguments.at(2)) == self.rank;
  return test::end_with_verdict(self, [&] {
    auto world = connect(test::fault_options(timeout));
    for (int round = 0; rounds == 0 || round < rounds; ++round) {
      test::gather_everything(world, round % world.world_size(), round);
      if (round == 0) self.say("working");
      while (stays_away) ::pause();
      if (rounds != 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that the job runs as long as the test needs
    }
    world.close();
  });
}

TEST(FaultsStoppedRank, is_not_dead_and_gets_the_verdict_when_it_continues) {
  ProcessRanks job(4, "gather_repeatedly", {.arguments = {std::to_string(test::short_timeout.count()), "0", "-1"}});
  for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(job.wait_for_line(rank, "working", step_timeout));
  job.signal(2, SIGSTOP);
  for (int rank : {0, 1, 3}) ASSERT_TRUE(job.wait_for_exit(rank, step_timeout));
  EXPECT_TRUE(job.running(2));
  job.signal(2, SIGCONT);
  auto const outcome = job.wait();

  // The stopped rank has the same verdict, although it was away for longer than the others waited.
  auto const verdict = test::expect_one_verdict(outcome);
  for (std::size_t const rank : {0U, 1U, 3U}) {
    std::chrono::milliseconds const took(test::verdict_of(outcome.ranks.at(rank)).last_milliseconds);
    EXPECT_LE(took, test::short_timeout + test::allowance) << outcome.text();
  }
  EXPECT_EQ(verdict.code, "timeout") << outcome.text();
  EXPECT_TRUE(verdict.blames_only(2)) << outcome.text();
  EXPECT_THAT(verdict.text, HasSubstr("stopped by a signal"));
  EXPECT_THAT(verdict.text, Not(HasSubstr("died")));
}

/// The group waits for both ranks. (A rank that arrives in a round before it dies has done its part of that round; only
/// the next round would notice its death.)
TEST(FaultsStoppedRank, does_not_hide_a_killed_rank) {
  ProcessRanks job(4, "gather_repeatedly", {.arguments = {std::to_string(test::long_timeout.count()), "0", "3"}});
  for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(job.wait_for_line(rank, "working", step_timeout));
  job.signal(1, SIGSTOP);
  job.signal(3, SIGKILL);
  for (int rank : {0, 2}) ASSERT_TRUE(job.wait_for_exit(rank, step_timeout));
  job.signal(1, SIGCONT);
  auto const outcome = job.wait();

  auto const verdict = test::expect_one_verdict(outcome, {3});
  EXPECT_EQ(verdict.code, "peer_lost") << outcome.text();
  EXPECT_TRUE(verdict.blames_only(3)) << outcome.text();
}

/// The watchdogs are stopped with their ranks. A death in the meantime must still be found when they continue.
TEST(FaultsStoppedRank, does_not_hide_a_death_while_all_ranks_are_stopped) {
  ProcessRanks job(3, "gather_repeatedly", {.arguments = {std::to_string(test::long_timeout.count()), "0", "-1"}});
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(job.wait_for_line(rank, "working", step_timeout));
  for (int rank = 0; rank < 3; ++rank) job.signal(rank, SIGSTOP);
  job.signal(0, SIGKILL);
  ASSERT_TRUE(job.wait_for_exit(0, step_timeout));
  for (int rank : {1, 2}) job.signal(rank, SIGCONT);
  auto const outcome = job.wait();

  auto const verdict = test::expect_one_verdict(outcome, {0});
  EXPECT_EQ(verdict.code, "peer_lost") << outcome.text();
  EXPECT_TRUE(verdict.blames_only(0)) << outcome.text();
}

/// Rank 1 waits for rank 0 in a pair, rank 0 waits in the world, and rank 2 is stopped. Argument: what rank 1 waits for
/// ("barrier", "message").
CROSSRANK_RANK_SCENARIO(wait_beside_a_stopped_rank) {
  bool const uses_queue = self.arguments.at(0) == "message";
  return test::end_with_verdict(self, [&] {
    auto const world = connect();
    auto const pair = world.split({{0, 1}, {2}});
    auto const queue = uses_queue && self.rank < 2 ? MessageQueue::create(pair, {.chunks = 2}) : MessageQueue();
    world.barrier();
    if (self.rank == 2) {
      self.say("stops");
      ::raise(SIGSTOP);
    }
    if (self.rank == 1 && uses_queue) static_cast<void>(queue.dequeue<int>());
    if (self.rank == 1 && !uses_queue) pair.barrier();
    world.barrier();
  });
}

class FaultsStoppedRankBeside : public testing::TestWithParam<char const*> {};

TEST_P(FaultsStoppedRankBeside, is_named_instead_of_the_rank_that_gave_up) {
  // Rank 0 has a longer timeout, so that rank 1 always gives up first.
  auto const limit = [](int factor) { return std::to_string((factor * test::short_timeout).count()) + "ms"; };
  ProcessRanks job(3, "wait_beside_a_stopped_rank",
                   {.arguments = {GetParam()},
                    .environment = {{"CROSSRANK_TIMEOUT", limit(1)}},
                    .rank_environment = {{0, {{"CROSSRANK_TIMEOUT", limit(4)}}}}});
  ASSERT_TRUE(job.wait_for_line(2, "stops", step_timeout));
  for (int const rank : {0, 1}) ASSERT_TRUE(job.wait_for_exit(rank, step_timeout));
  job.signal(2, SIGCONT);
  auto const outcome = job.wait();

  for (std::size_t const rank : {0U, 2U}) {
    auto const verdict = test::verdict_of(outcome.ranks.at(rank));
    EXPECT_EQ(verdict.code, "timeout") << outcome.text();
    EXPECT_TRUE(verdict.blames_only(2)) << outcome.text();
    EXPECT_THAT(verdict.text, HasSubstr("rank 1 did not arrive")) << outcome.text();
  }
  auto const of_pair = test::verdict_of(outcome.ranks.at(1));
  EXPECT_EQ(of_pair.code, "timeout") << outcome.text();
  if (GetParam() == std::string("barrier")) {
    EXPECT_TRUE(of_pair.blames_only(0)) << "the other rank of the pair\n" << outcome.text();
    EXPECT_THAT(of_pair.text, HasSubstr("root cause: rank 2 of the job")) << outcome.text();
    EXPECT_THAT(of_pair.text, HasSubstr("stopped by a signal")) << outcome.text();
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, FaultsStoppedRankBeside, testing::Values("barrier", "message"),
                         [](auto const& one) { return std::string(one.param); });

CROSSRANK_RANK_SCENARIO(wait_for_each_other) {
  return test::end_with_verdict(self, [&] {
    auto const world = connect(test::fault_options(test::short_timeout));
    auto const first = world.split({{0, 1}});
    auto const second = world.split({{0, 1}});
    world.barrier();
    test::note_progress();
    (self.rank == 0 ? first : second).barrier();
  });
}

TEST(FaultsDeadlock, ends_after_the_deadline_and_names_the_other_rank) {
  auto const outcome = test::run_ranks(2, "wait_for_each_other", {});
  for (int const rank : {0, 1}) {
    auto const verdict = test::verdict_of(outcome.ranks.at(as_size(rank)));
    EXPECT_TRUE(verdict.blames_only(1 - rank)) << outcome.text();
    EXPECT_LE(std::chrono::milliseconds(verdict.last_milliseconds), test::short_timeout + test::allowance);
    EXPECT_THAT(verdict.text, Not(HasSubstr("keeps other ranks waiting"))) << outcome.text();
  }
}

TEST(FaultsSuspendedJob, has_not_timed_out_when_it_continues) {
  constexpr auto timeout = test::short_timeout;
  ProcessRanks job(3, "gather_repeatedly",
                   {.deadline = 2 * step_timeout, .arguments = {std::to_string(timeout.count()), "60", "-1"}});
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(job.wait_for_line(rank, "working", step_timeout));
  for (int rank = 0; rank < 3; ++rank) job.signal(rank, SIGSTOP);
  std::this_thread::sleep_for(2 * timeout);  // this time must not count
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(job.running(rank));
  for (int rank = 0; rank < 3; ++rank) job.signal(rank, SIGCONT);
  auto const outcome = job.wait();

  EXPECT_EQ(test::expect_one_verdict(outcome).code, "ok") << outcome.text();
  for (auto const& rank : outcome.ranks)
    EXPECT_GT(rank.elapsed, 2 * timeout) << "the job was never suspended\n" << outcome.text();
}

}  // namespace
}  // namespace crossrank
