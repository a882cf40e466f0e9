// The programs of docs/guide that are not in programs_test.cpp, with the output and the errors that the guide shows.
#include <chrono>
#include <csignal>
#include <cstddef>
#include <fstream>
#include <string>

#include <sys/types.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/json.hpp>

#include "lib/core/as_size.hpp"
#include "tests/examples/run_example.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank::test {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Configs, joins_the_parts_of_a_layer) {
  for (int const ranks : {1, 2, 4}) {
    auto const end = run_example(ranks, "configs");

    EXPECT_EQ(end.exit_code, 0) << end.err;
    auto const rows = std::to_string(2 * ranks);
    EXPECT_EQ(end.out, R"([0] {"layer":"mlp.up_proj","rows":)" + rows + R"(,"dropout":0.1}: F32 [)" + rows + ", 4]\n");
  }
}

TEST(Configs, leaves_the_given_directory_empty) {
  TemporaryDirectory const directory;
  auto const end = run_example(4, "configs", {directory.path()});

  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("F32 [8, 4]"));
  EXPECT_THAT(names_in(directory.path()), testing::IsEmpty());
}

TEST(MeshExample, reduces_along_each_axis) {
  auto const end = run_example(4, "mesh");

  EXPECT_EQ(end.exit_code, 0) << end.err;
  for (std::string const line :
       {"[0] rank 0 is dp 0, tp 0: activation 2 1, gradient 1\n",
        "[1] rank 1 is dp 0, tp 1: activation 2 1, gradient 2\n",
        "[2] rank 2 is dp 1, tp 0: activation 2 5, gradient 1\n",
        "[3] rank 3 is dp 1, tp 1: activation 2 5, gradient 2\n", "[0] the ends of the job are 2 ranks\n"}) {
    EXPECT_THAT(end.out, HasSubstr(line));
  }
}

TEST(Errors, leave_the_group_usable_when_nothing_was_sent) {
  auto const end = run_example(4, "errors", {"usage"});

  EXPECT_EQ(end.exit_code, 0) << end.err;
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_THAT(end.out, HasSubstr("rank " + std::to_string(rank) + ": usage, failed ranks none: "));
  EXPECT_THAT(end.out, HasSubstr("[0] the group is still usable\n"));
}

TEST(Errors, deliver_an_exception_to_every_rank) {
  auto const end = run_example(4, "errors", {"remote"});

  EXPECT_EQ(end.exit_code, 0) << end.err;
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_THAT(end.out, HasSubstr("rank " + std::to_string(rank) + ": remote, failed ranks 3: "));
  EXPECT_THAT(end.out, HasSubstr("[3] rank 3: the disk is full\n"));
  EXPECT_THAT(end.out, HasSubstr("[0] the group is still usable\n"));
}

TEST(Errors, name_the_rank_that_differs) {
  auto const end = run_example(4, "errors", {"mismatch"});

  EXPECT_EQ(end.exit_code, 1) << end.err;
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_THAT(end.out, HasSubstr("rank " + std::to_string(rank) + ": mismatch, failed ranks 3: "));
  EXPECT_THAT(end.out, Not(HasSubstr("still usable")));
}

TEST(Errors, name_the_rank_that_is_late) {
  auto const end = run_example(4, "errors", {"timeout"});

  EXPECT_EQ(end.exit_code, 1) << end.err;
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_THAT(end.out, HasSubstr("rank " + std::to_string(rank) + ": timeout, failed ranks 3: "));
}

TEST(Errors, name_the_rank_that_died) {
  auto const end = run_example(4, "errors", {"lost"});

  EXPECT_EQ(end.exit_code, 128 + SIGKILL) << end.err;
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_THAT(end.out, HasSubstr("rank " + std::to_string(rank) + ": peer_lost, failed ranks 3: "));
}

TEST(Embedding, runs_without_a_launcher) {
  auto const end = run_example(1, "embedding", {"3"});

  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(end.out, "[0] 3 threads, ranks sum up to 3\n");
}

TEST(TwoHosts, runs_on_one_host_too) {
  auto const end = run_example(2, "two_hosts");

  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(end.out, "[0] backend shm, 1 host, local ranks 0/2 1/2\n[0] joined F32 [4, 3]\n");
}

/// Returns the parent of a process from /proc; 0 when there is none.
pid_t parent_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);               // fails without an exception if the process ends meanwhile
  auto const name_end = stat.rfind(')');  // the name may contain anything
  if (name_end == std::string::npos) return 0;
  return static_cast<pid_t>(std::stol(stat.substr(name_end + 4)));
}

bool is_descendant(pid_t pid, pid_t ancestor) {
  while (pid > 1 && pid != ancestor) pid = parent_of(pid);
  return pid == ancestor;
}

/// Returns whether every rank of a job that `inspect` shows waits for another rank.
bool is_stuck(Json const& job) {
  for (auto const& rank : job.at("ranks")) {
    if (!rank.contains("waits_for") || rank.at("waits_for").empty()) return false;
  }
  return true;
}

/// Returns whether `run` has started the ranks of the job.
bool is_started_by(Json const& job, pid_t run) {
  for (auto const& rank : job.at("ranks")) {
    if (rank.at("pid").is_number() && is_descendant(rank.at("pid").get<pid_t>(), run)) return true;
  }
  return false;
}

/// Inspects until all ranks of the job wait; returns null when that does not happen in time.
Json inspect_until_stuck(pid_t run) {
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < end) {
    auto const report = Json::parse(run_command({"inspect", "--json"}).out);
    for (auto const& job : report.at("jobs")) {
      if (is_started_by(job, run) && is_stuck(job)) return job;
    }
  }
  return {};
}

TEST(Hang, shows_the_cycle_of_waiting_ranks) {
  CommandRun job({"run", "-n", "3", "--", std::string(CROSSRANK_EXAMPLES) + "/hang"});
  auto const seen = inspect_until_stuck(job.pid());

  ASSERT_FALSE(seen.is_null());
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(seen.at("ranks").at(as_size(rank)).at("waits_for"), Json{(rank + 2) % 3});
  job.signal(SIGTERM);
  EXPECT_NE(job.finish().exit_code, 0);
}

TEST(Hang, ends_in_the_fixed_version) {
  auto const end = run_example(3, "hang", {"fixed"});

  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("[0] rank 0 has the message of rank 2\n"));
  EXPECT_THAT(end.out, HasSubstr("[2] rank 2 has the message of rank 1\n"));
}

}  // namespace
}  // namespace crossrank::test
