// Ranks that are stopped: slow, not dead, and of no use to the group when they wake.
#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/faults/fault_report.hpp"
#include "tests/faults/fault_workload.hpp"

namespace crossrank {
namespace {

using test::ProcessRanks;
using testing::HasSubstr;
using testing::Not;

constexpr auto step_timeout = test::step_timeout;

/// Meets over and over until something fails. Arguments: timeout in milliseconds, rounds (0: no end), who stays away
/// from the second one (-1: nobody).
CROSSRANK_RANK_SCENARIO(meet_for_ever) {
  std::chrono::milliseconds const timeout(std::stol(self.arguments.at(0)));
  int const rounds = std::stoi(self.arguments.at(1));
  bool const stays_away = std::stoi(self.arguments.at(2)) == self.rank;
  return test::end_with_verdict(self, [&] {
    auto world = connect(test::fault_options(timeout));
    for (int round = 0; rounds == 0 || round < rounds; ++round) {
      test::gather_everything(world, round % world.world_size(), round);
      if (round == 0) self.say("working");
      while (stays_away) ::pause();
      if (rounds != 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));  // lasts as long as the test needs
    }
    world.close();
  });
}

TEST(FaultsStoppedRank, is_slow_and_gets_the_verdict_when_it_wakes) {
  ProcessRanks job(4, "meet_for_ever", {.arguments = {std::to_string(test::short_timeout.count()), "0", "-1"}});
  for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(job.wait_for_line(rank, "working", step_timeout));
  job.signal(2, SIGSTOP);
  for (int rank : {0, 1, 3}) ASSERT_TRUE(job.wait_for_exit(rank, step_timeout));
  EXPECT_TRUE(job.running(2));
  job.signal(2, SIGCONT);
  auto const outcome = job.wait();

  // The one that was stopped included; it was away for longer than the others waited.
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

/// Both are waited for. (One that arrives and then dies has done its part of that round: the next one finds its
/// death.)
TEST(FaultsStoppedRank, does_not_hide_one_that_is_killed) {
  ProcessRanks job(4, "meet_for_ever", {.arguments = {std::to_string(test::long_timeout.count()), "0", "3"}});
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

/// All watchdogs are stopped with their ranks: a death among them must still be found when they wake.
TEST(FaultsStoppedRank, finds_a_death_that_happened_while_all_were_stopped) {
  ProcessRanks job(3, "meet_for_ever", {.arguments = {std::to_string(test::long_timeout.count()), "0", "-1"}});
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

TEST(FaultsSuspendedJob, has_not_timed_out_when_it_goes_on) {
  constexpr auto timeout = test::short_timeout;
  ProcessRanks job(3, "meet_for_ever",
                   {.deadline = 2 * step_timeout, .arguments = {std::to_string(timeout.count()), "60", "-1"}});
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(job.wait_for_line(rank, "working", step_timeout));
  for (int rank = 0; rank < 3; ++rank) job.signal(rank, SIGSTOP);
  std::this_thread::sleep_for(2 * timeout);  // what is tested is that this time does not count
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(job.running(rank));
  for (int rank = 0; rank < 3; ++rank) job.signal(rank, SIGCONT);
  auto const outcome = job.wait();

  EXPECT_EQ(test::expect_one_verdict(outcome).code, "ok") << outcome.text();
  for (auto const& rank : outcome.ranks)
    EXPECT_GT(rank.elapsed, 2 * timeout) << "it was never suspended\n" << outcome.text();
}

}  // namespace
}  // namespace crossrank
