#include "tools/job_verdict.hpp"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using crossrank::tools::JobVerdict;
using std::chrono::milliseconds;
using testing::HasSubstr;

int exited(int code) { return code << 8; }

TEST(JobVerdict, is_good_when_all_returned_0) {
  JobVerdict verdict;
  verdict.add({.rank = 0, .status = exited(0)});
  EXPECT_FALSE(verdict.failed());
  EXPECT_EQ(verdict.exit_code(), 0);
  EXPECT_EQ(verdict.sentence(), "");
}

TEST(JobVerdict, takes_the_first_of_several_exit_codes) {
  JobVerdict verdict;
  verdict.add({.rank = 2, .pid = 42, .status = exited(9), .after = milliseconds(1250)});
  verdict.add({.rank = 0, .status = exited(1)});
  EXPECT_EQ(verdict.exit_code(), 9);
  EXPECT_THAT(verdict.sentence(), HasSubstr("rank 2 (pid 42)"));
  EXPECT_THAT(verdict.sentence(), HasSubstr("exit code 9"));
  EXPECT_THAT(verdict.sentence(), HasSubstr("1.25 s"));
}

TEST(JobVerdict, blames_a_killed_rank_that_is_seen_after_its_peers_have_left) {
  JobVerdict verdict;
  verdict.add({.rank = 0, .status = exited(1)});
  verdict.add({.rank = 1, .status = SIGABRT});
  verdict.add({.rank = 2, .status = SIGKILL});
  EXPECT_EQ(verdict.exit_code(), 128 + SIGKILL);
  EXPECT_THAT(verdict.sentence(), HasSubstr("rank 2"));
}

TEST(JobVerdict, does_not_blame_an_abort_that_came_after_an_exit) {
  JobVerdict verdict;
  verdict.add({.rank = 1, .status = exited(3)});
  verdict.add({.rank = 0, .status = SIGABRT});
  EXPECT_EQ(verdict.exit_code(), 3);
}

TEST(JobVerdict, does_not_blame_a_rank_that_the_launcher_ended) {
  JobVerdict verdict;
  verdict.add({.rank = 0, .status = SIGTERM, .asked = true});
  verdict.add({.rank = 1, .status = exited(5)});
  EXPECT_EQ(verdict.exit_code(), 5);
}

}  // namespace
