#include "tests/support/process_ranks.hpp"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "lib/core/as_size.hpp"
#include "tests/support/leak_check.hpp"
#include "tests/support/temporary_directory.hpp"

namespace {

using crossrank::test::LeakCheck;
using crossrank::test::ProcessRanks;
using crossrank::test::run_ranks;
using crossrank::test::TemporaryDirectory;
using std::chrono::milliseconds;
using testing::HasSubstr;

CROSSRANK_RANK_SCENARIO(report_environment) {
  self.say("rank " + std::to_string(self.rank) + " of " + std::to_string(self.world_size) + " in " +
           std::getenv("CROSSRANK_JOB_ID"));
  self.say(std::string("launcher says ") + std::getenv("RANK") + "/" + std::getenv("WORLD_SIZE"));
  for (auto const& argument : self.arguments) std::fprintf(stderr, "argument %s\n", argument.c_str());
  return self.rank + 10;
}

CROSSRANK_RANK_SCENARIO(wait_for_ever) {
  self.say("ready");
  while (true) ::pause();
}

CROSSRANK_RANK_SCENARIO(fail_expectation) {
  EXPECT_EQ(self.rank, -1);
  return 0;
}

CROSSRANK_RANK_SCENARIO(throw_exception) { throw std::runtime_error("left on purpose"); }

CROSSRANK_RANK_SCENARIO(leave_child) {
  if (::fork() == 0) {
    ::alarm(20);
    while (true) ::pause();
  }
  return 0;
}

TEST(ProcessRanks, get_rank_and_environment_and_report_exit_code_and_output) {
  auto const job = run_ranks(3, "report_environment", {.arguments = {"one two"}});
  ASSERT_EQ(job.ranks.size(), 3U) << job.text();
  for (int r = 0; r < 3; ++r) {
    auto const& rank = job.ranks.at(crossrank::as_size(r));
    auto const number = std::to_string(r);
    EXPECT_EQ(rank.exit_code, 10 + r) << job.text();
    EXPECT_EQ(rank.out, "rank " + number + " of 3 in " + job.job_id + "\nlauncher says " + number + "/3\n");
    EXPECT_EQ(rank.err, "argument one two\n");
  }
  EXPECT_FALSE(job.timed_out);
  EXPECT_TRUE(job.leaks.empty()) << job.text();
}

TEST(ProcessRanks, are_killed_at_the_deadline) {
  auto const job = run_ranks(2, "wait_for_ever", {.deadline = milliseconds(500)});
  EXPECT_TRUE(job.timed_out);
  EXPECT_EQ(job.ranks.at(0).signal, SIGKILL) << job.text();
  EXPECT_EQ(job.ranks.at(1).signal, SIGKILL) << job.text();
  EXPECT_TRUE(job.leaks.empty()) << job.text();
}

TEST(ProcessRanks, get_a_signal_when_a_marker_is_printed) {
  auto const job =
      run_ranks(2, "wait_for_ever",
                {.signals = {{.rank = 0, .signal = SIGTERM, .marker = "ready", .marker_rank = 1},
                             {.rank = 1, .signal = SIGUSR1, .after = milliseconds(50), .marker = "ready"}}});
  EXPECT_FALSE(job.timed_out);
  EXPECT_EQ(job.ranks.at(0).signal, SIGTERM) << job.text();
  EXPECT_EQ(job.ranks.at(1).signal, SIGUSR1) << job.text();
}

TEST(ProcessRanks, can_be_waited_for_and_signalled_by_the_test) {
  ProcessRanks job(1, "wait_for_ever");
  ASSERT_TRUE(job.wait_for_line(0, "ready"));
  EXPECT_FALSE(job.wait_for_line(0, "never", milliseconds(30)));
  EXPECT_TRUE(job.running(0));
  job.signal(0, SIGINT);
  EXPECT_TRUE(job.wait_for_exit(0));
  EXPECT_EQ(job.wait().ranks.at(0).signal, SIGINT);
}

TEST(ProcessRanks, fail_when_an_expectation_fails) {
  auto const job = run_ranks(1, "fail_expectation");
  EXPECT_EQ(job.ranks.at(0).exit_code, 1) << job.text();
  EXPECT_THAT(job.text(), HasSubstr("self.rank"));
}

TEST(ProcessRanks, abort_on_an_uncaught_exception) {
  auto const job = run_ranks(1, "throw_exception");
  EXPECT_EQ(job.ranks.at(0).signal, SIGABRT) << job.text();
  EXPECT_THAT(job.ranks.at(0).err, HasSubstr("left on purpose"));
}

TEST(ProcessRanks, report_an_unknown_scenario) {
  auto const job = run_ranks(1, "no_such_scenario");
  EXPECT_EQ(job.ranks.at(0).exit_code, 99) << job.text();
}

TEST(ProcessRanks, find_and_kill_a_process_left_behind) {
  ProcessRanks job(1, "leave_child");
  auto const outcome = job.wait();
  ASSERT_EQ(outcome.leaks.size(), 1U) << outcome.text();
  EXPECT_THAT(outcome.leaks.at(0), HasSubstr("leave_child"));
  EXPECT_TRUE(LeakCheck().findings(outcome.job_id).empty());
}

// The grace time is short, so that leak checks of tests that run at the same time do not report this file.
TEST(LeakCheck, finds_shared_memory_left_behind) {
  LeakCheck const check;
  auto const path = "/dev/shm/crossrank-leak-check-" + std::to_string(::getpid());
  std::ofstream(path) << "x";
  auto const findings = check.findings("", milliseconds(100));
  ::unlink(path.c_str());
  EXPECT_THAT(findings, testing::Contains(path));
}

TEST(TemporaryDirectory, is_removed_with_its_content) {
  std::filesystem::path path;
  {
    TemporaryDirectory const directory;
    path = directory.path();
    std::filesystem::create_directories(path / "a" / "b");
    std::ofstream(path / "a" / "b" / "file") << "x";
    std::filesystem::permissions(path / "a", std::filesystem::perms::owner_read);
    ASSERT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
