#include "tools/launch/job_outcome.hpp"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using crossrank::tools::JobOutcome;
using std::chrono::milliseconds;
using testing::HasSubstr;

int exited(int code) { return code << 8; }

TEST(JobOutcome, is_success_when_all_ranks_returned_0) {
  JobOutcome outcome;
  outcome.add({.rank = 0, .status = exited(0)});
  EXPECT_FALSE(outcome.failed());
  EXPECT_EQ(outcome.exit_code(), 0);
  EXPECT_EQ(outcome.summary(), "");
}

TEST(JobOutcome, returns_the_first_of_several_exit_codes) {
  JobOutcome outcome;
  outcome.add({.rank = 2, .pid = 42, .status = exited(9), .after = milliseconds(1250)});
  outcome.add({.rank = 0, .status = exited(1)});
  EXPECT_EQ(outcome.exit_code(), 9);
  EXPECT_THAT(outcome.summary(), HasSubstr("rank 2 (pid 42)"));
  EXPECT_THAT(outcome.summary(), HasSubstr("exit code 9"));
  EXPECT_THAT(outcome.summary(), HasSubstr("1.25 s"));
}

TEST(JobOutcome, blames_a_killed_rank_that_is_seen_after_its_peers_have_left) {
  JobOutcome outcome;
  outcome.add({.rank = 0, .status = exited(1)});
  outcome.add({.rank = 1, .status = SIGABRT});
  outcome.add({.rank = 2, .status = SIGKILL});
  EXPECT_EQ(outcome.exit_code(), 128 + SIGKILL);
  EXPECT_THAT(outcome.summary(), HasSubstr("rank 2"));
}

TEST(JobOutcome, does_not_blame_an_abort_after_an_exit) {
  JobOutcome outcome;
  outcome.add({.rank = 1, .status = exited(3)});
  outcome.add({.rank = 0, .status = SIGABRT});
  EXPECT_EQ(outcome.exit_code(), 3);
}

TEST(JobOutcome, knows_the_signal_that_one_rank_tells_by_its_exit_code) {
  JobOutcome outcome;
  outcome.add({.rank = 1, .status = exited(128 + SIGINT)});
  EXPECT_EQ(outcome.code_of_signal(), std::nullopt);
  outcome.add({.rank = 0, .status = exited(128 + SIGHUP)});
  EXPECT_EQ(outcome.code_of_signal(), 128 + SIGHUP);
}

TEST(JobOutcome, does_not_blame_a_rank_that_the_launcher_ended) {
  JobOutcome outcome;
  outcome.add({.rank = 0, .status = SIGTERM, .by_launcher = true});
  outcome.add({.rank = 1, .status = exited(5)});
  EXPECT_EQ(outcome.exit_code(), 5);
}

TEST(JobOutcome, lists_all_ranks_in_order_of_time_and_marks_the_root_cause) {
  JobOutcome outcome;
  outcome.add({.rank = 3, .pid = 13, .status = exited(0), .after = milliseconds(10)});
  outcome.add({.rank = 1, .pid = 11, .status = exited(7), .after = milliseconds(20)});
  outcome.add({.rank = 0, .pid = 10, .status = SIGTERM, .after = milliseconds(2500), .by_launcher = true});
  EXPECT_EQ(outcome.summary(),
            "the job failed; its ranks in the order in which they ended:\n"
            "  rank 3 (pid 13): exit code 0 after 0.01 s\n"
            "  rank 1 (pid 11): exit code 7 after 0.02 s  <- root cause\n"
            "  rank 0 (pid 10): signal 15 (SIGTERM), sent by this command, after 2.50 s");
  EXPECT_EQ(outcome.exit_code(), 7);
}

TEST(JobOutcome, blames_no_rank_when_a_signal_to_the_command_ended_the_job) {
  JobOutcome outcome;
  outcome.end_requested(SIGINT);
  outcome.add({.rank = 1, .pid = 11, .status = exited(1), .after = milliseconds(20)});
  outcome.add({.rank = 0, .pid = 10, .status = SIGTERM, .after = milliseconds(30), .by_launcher = true});
  EXPECT_EQ(outcome.summary(),
            "the job was ended by signal 2 (SIGINT); its ranks in the order in which they ended:\n"
            "  rank 1 (pid 11): exit code 1 after 0.02 s\n"
            "  rank 0 (pid 10): signal 15 (SIGTERM), sent by this command, after 0.03 s");
  EXPECT_EQ(outcome.exit_code(), 1);
}

TEST(JobOutcome, keeps_the_root_cause_when_a_signal_comes_after_the_first_failure) {
  JobOutcome outcome;
  outcome.add({.rank = 1, .status = exited(7)});
  outcome.end_requested(SIGTERM);
  outcome.add({.rank = 0, .status = SIGTERM, .by_launcher = true});
  EXPECT_THAT(outcome.summary(), testing::ContainsRegex("the job failed.*\n.*rank 1 .*<- root cause"));
}

TEST(JobOutcome, blames_a_rank_that_returned_0_while_the_others_waited_for_it_in_connect) {
  JobOutcome outcome;
  outcome.add({.rank = 1, .status = exited(0)});
  outcome.add({.rank = 0, .status = exited(4)});
  outcome.annotate([](auto& end) { end.before_connect = end.rank == 1; });
  EXPECT_THAT(outcome.summary(), testing::ContainsRegex("rank 1 .*exit code 0.*ended before connect  <- root cause"));
  EXPECT_EQ(outcome.exit_code(), 4);
}

TEST(JobOutcome, blames_the_rank_whose_failure_the_first_one_followed) {
  JobOutcome outcome;
  outcome.add({.rank = 0, .status = exited(1)});
  outcome.add({.rank = 2, .status = exited(1)});
  outcome.add({.rank = 1, .status = exited(5)});
  outcome.annotate([](auto& end) {
    if (end.rank != 1) end.caused_by = end.rank == 0 ? 2 : 1;
  });
  EXPECT_THAT(outcome.summary(), testing::ContainsRegex("rank 1 .*exit code 5.*<- root cause"));
  EXPECT_THAT(outcome.summary(), testing::ContainsRegex("rank 0 .*because of rank 2"));
  EXPECT_EQ(outcome.exit_code(), 5);
}

TEST(JobOutcome, terminates_when_ranks_blame_each_other_in_a_cycle) {
  JobOutcome outcome;
  outcome.add({.rank = 0, .status = exited(1)});
  outcome.add({.rank = 1, .status = exited(2)});
  outcome.annotate([](auto& end) { end.caused_by = 1 - end.rank; });
  EXPECT_THAT(outcome.summary(), HasSubstr("root cause"));
}

TEST(JobOutcome, shortens_the_list_of_a_large_job) {
  JobOutcome outcome;
  for (int rank = 0; rank < 1000; ++rank) outcome.add({.rank = rank, .status = exited(rank == 500 ? 0 : 1)});
  outcome.annotate([](auto& end) { end.before_connect = end.rank == 500; });
  auto const text = outcome.summary();
  EXPECT_LT(text.size(), 4000U);
  EXPECT_THAT(text, HasSubstr("rank 500 (pid"));
  EXPECT_THAT(text, HasSubstr("then also: 32-499, 501-999"));
}

}  // namespace
