// Tests what ranks under `crossrank run` are told of each other during connect, and the summary of the job.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>
#include <crossrank/helpers.hpp>
#include <crossrank/parallel.hpp>

#include "tests/support/rank_scenario.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/tools/command_run.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr int victim = 1;
/// The timeout of ranks that are told nothing. No test takes a tenth of it, even under heavy load.
constexpr auto connect_timeout = seconds(600);

void end_before_connect(std::string const& how) {
  if (how == "exit 0") ::_exit(0);
  if (how == "exit 3") ::_exit(3);
  if (how == "kill") ::kill(::getpid(), SIGKILL);
  if (how == "not found") ::execl("/nonexistent/program", "program", nullptr);
  ::_exit(127);
}

/// Waits until all ranks except the victim have written what they were told.
void wait_for_the_others(fs::path const& folder, int ranks) {
  auto const until = std::chrono::steady_clock::now() + seconds(60);
  for (int rank = 0; rank < ranks && std::chrono::steady_clock::now() < until; std::this_thread::yield()) {
    if (rank == victim || fs::exists(folder / std::to_string(rank))) ++rank;
  }
}

/// Arguments: how the victim ends, a folder.
CROSSRANK_RANK_SCENARIO(rank_of_run) {
  auto const& how = self.arguments.at(0);
  fs::path const folder = self.arguments.at(1);
  bool const is_victim = self.rank == victim;
  bool const connects = how == "leave" || how.starts_with("throw") || how == "none";
  if (is_victim && !connects) end_before_connect(how);
  try {
    auto world = connect({.timeout = seconds(100), .connect_timeout = connect_timeout});
    world.barrier();
    self.say("connected");
    if (is_victim && how == "leave") std::exit(0);
    if (how == "throw") {
      auto shards = get_tensors_parallel(Tensor::scalar(self.rank), {victim, 0, 2}, world);
      for (auto const& shard : shards) {
        if (shard.defined()) throw std::runtime_error("no space on the disk");
      }
      shards.close();
    }
    if (how == "throw on the root")
      compute_and_broadcast(
          world, []() -> int { throw std::runtime_error("no space on the disk"); }, Root{victim});
    world.barrier();
    if (how == "none") world.close();
    return 0;
  } catch (Error const& e) {
    std::string blamed;
    for (int const rank : e.failed_ranks()) blamed += " " + std::to_string(rank);
    self.say("told " + std::string(to_string(e.code())) + blamed + ": " + e.what());
    std::ofstream(folder / std::to_string(self.rank)) << "x";
    return 4;
  } catch (std::runtime_error const&) {
    wait_for_the_others(folder, self.world_size);
    return 5;
  }
}

/// Arguments: the victim, and the microseconds after which it is killed. The others call barriers until they are told.
CROSSRANK_RANK_SCENARIO(rank_killed_under_run) {
  if (self.rank == std::stoi(self.arguments.at(0))) {
    std::thread([delay = std::chrono::microseconds(std::stol(self.arguments.at(1)))] {
      std::this_thread::sleep_for(delay);
      ::kill(::getpid(), SIGKILL);
    }).detach();
  }
  try {
    auto const world = connect({.timeout = seconds(100), .connect_timeout = connect_timeout});
    for (;;) world.barrier();
  } catch (Error const& e) {
    std::string blamed;
    for (int const rank : e.failed_ranks()) blamed += " " + std::to_string(rank);
    self.say("told " + std::string(to_string(e.code())) + blamed);
    return 0;
  }
}

struct ConnectUnderRun : testing::Test {
  [[nodiscard]] static std::string scenario(std::string const& name) {
    return "CROSSRANK_TEST_RANK=$RANK CROSSRANK_TEST_WORLD_SIZE=$WORLD_SIZE '" +
           fs::read_symlink("/proc/self/exe").string() + "' --crossrank-rank-scenario=" + name + " ";
  }
  [[nodiscard]] std::string rank_command(std::string const& how) const {
    return scenario("rank_of_run") + "'" + how + "' '" + folder.path().string() + "'";
  }
  [[nodiscard]] static test::CommandEnd run(int ranks, std::string const& script) {
    return test::CommandRun({"run", "-n", std::to_string(ranks), "--grace", "60s", "--", "/bin/sh", "-c", script})
        .finish(seconds(240));
  }
  [[nodiscard]] test::CommandEnd run(int ranks, std::string const& before, std::string const& how) const {
    return run(ranks, before + " exec env " + rank_command(how));
  }
  test::TemporaryDirectory folder;
};

/// How the victim ends, and how the summary describes it.
struct End {
  char const* how;
  char const* description;
  int exit_code;
};
struct EndBeforeConnect : ConnectUnderRun, testing::WithParamInterface<End> {};

TEST_P(EndBeforeConnect, is_reported_at_once_to_the_waiting_ranks) {
  auto const& end = GetParam();
  auto const job = run(3, "", end.how);
  for (auto const* const rank : {"[0] ", "[2] "}) {
    EXPECT_THAT(job.out,
                HasSubstr(std::string(rank) + "told peer_lost 1: connect: rank 1 ended before connect: rank 1 (pid"))
        << job.err;
  }
  EXPECT_THAT(job.out, HasSubstr(end.description));
  EXPECT_THAT(job.err,
              ContainsRegex("rank 1 \\(pid [0-9]+\\): .* after [0-9.]+ s, ended before connect  <- root cause"))
      << job.out;
  EXPECT_THAT(job.err, AllOf(HasSubstr(end.description), ContainsRegex("rank 0 .*: exit code 4"),
                             ContainsRegex("rank 2 .*: exit code 4"), Not(HasSubstr("other ranks"))));
  EXPECT_EQ(job.exit_code, end.exit_code) << job.err;
}

INSTANTIATE_TEST_SUITE_P(By, EndBeforeConnect,
                         testing::Values(End{"exit 0", "exit code 0", 4}, End{"exit 3", "exit code 3", 3},
                                         End{"kill", "signal 9 (SIGKILL)", 137},
                                         End{"not found", "exit code 127", 127}),
                         [](auto const& one) {
                           std::string name = one.param.how;
                           for (auto& c : name) c = c == ' ' ? '_' : c;
                           return name;
                         });

TEST_F(ConnectUnderRun, is_told_of_a_rank_that_ended_before_the_others_started) {
  auto const file = "'" + (folder.path() / "pid").string() + "'";
  auto const job = run(3,
                       "if [ $RANK = 1 ]; then echo $$ >" + file + "; exit 0; fi; while [ ! -s " + file +
                           " ] || kill -0 $(cat " + file + ") 2>/dev/null; do sleep 0.05; done;",
                       "none");
  EXPECT_THAT(job.out, AllOf(HasSubstr("[0] told peer_lost 1"), HasSubstr("[2] told peer_lost 1"))) << job.err;
  EXPECT_THAT(job.err, ContainsRegex("rank 1 .*exit code 0 .*ended before connect  <- root cause"));
}

/// The process that returned 0 is a shell; the rank is its background process.
TEST_F(ConnectUnderRun, waits_for_a_rank_whose_first_process_has_ended) {
  auto const job = run(3, "if [ $RANK = 1 ]; then (sleep 0.3; " + rank_command("none") + ") & exit 0; fi; exec env " +
                              rank_command("none"));
  EXPECT_EQ(job.exit_code, 0) << job.out << job.err;
  for (auto const* const rank : {"[0] ", "[1] ", "[2] "})
    EXPECT_THAT(job.out, HasSubstr(std::string(rank) + "connected"));
}

TEST_F(ConnectUnderRun, names_the_rank_that_returned_0_while_the_others_needed_it) {
  auto const job = run(3, "", "leave");
  EXPECT_THAT(job.out, AllOf(HasSubstr("[0] told peer_lost 1"), HasSubstr("[2] told peer_lost 1"))) << job.err;
  EXPECT_THAT(job.err, ContainsRegex("rank 1 \\(pid [0-9]+\\): exit code 0 after [0-9.]+ s  <- root cause"));
  EXPECT_THAT(job.err, ContainsRegex("rank 0 .*: exit code 4 .*because of rank 1"));
  EXPECT_THAT(job.err, Not(HasSubstr("before connect")));
  EXPECT_EQ(job.exit_code, 4);
}

/// The records of the ranks are then in a file.
TEST_F(ConnectUnderRun, names_the_root_cause_also_with_a_flight_directory) {
  test::TemporaryDirectory const flights;
  auto const job = run(3, "export CROSSRANK_FLIGHT_DIR=" + flights.path().string() + ";", "throw on the root");
  EXPECT_THAT(job.err, ContainsRegex("rank 1 \\(pid [0-9]+\\): exit code 5 after [0-9.]+ s  <- root cause")) << job.out;
  EXPECT_THAT(job.err, ContainsRegex("rank 0 .*: exit code 4 .*because of rank 1"));
}

/// The rank that threw ends last, with its own exit code.
TEST_F(ConnectUnderRun, names_the_rank_that_threw_inside_a_range_even_if_it_ends_last) {
  auto const job = run(3, "", "throw");
  EXPECT_THAT(job.err, ContainsRegex("rank 1 \\(pid [0-9]+\\): exit code 5 after [0-9.]+ s  <- root cause")) << job.out;
  EXPECT_EQ(job.exit_code, 5) << job.err;
}

TEST_F(ConnectUnderRun, names_the_rank_whose_exception_the_others_threw_even_if_it_ends_last) {
  auto const job = run(3, "", "throw on the root");
  EXPECT_THAT(job.err, ContainsRegex("rank 1 \\(pid [0-9]+\\): exit code 5 after [0-9.]+ s  <- root cause")) << job.out;
  EXPECT_THAT(job.err, ContainsRegex("rank 0 .*: exit code 4 .*because of rank 1"));
  EXPECT_EQ(job.exit_code, 5) << job.err;
}

/// The rank is killed before, during or after connect, as server or as client. The others must always agree.
TEST_F(ConnectUnderRun, gives_all_survivors_one_verdict_when_a_rank_is_killed_at_any_time) {
  constexpr int ranks = 4;
  auto const seed = std::random_device{}();
  std::mt19937 random(seed);
  for (int kill = 0; kill < 40; ++kill) {
    int const killed = std::uniform_int_distribution(0, ranks - 1)(random);
    int const microseconds = std::uniform_int_distribution(0, 30'000)(random);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", kill " + std::to_string(kill));
    auto const job = run(ranks, "exec env " + scenario("rank_killed_under_run") + std::to_string(killed) + " " +
                                    std::to_string(microseconds));
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == killed) continue;
      EXPECT_THAT(job.out, HasSubstr("[" + std::to_string(rank) + "] told peer_lost " + std::to_string(killed) + "\n"))
          << job.err;
    }
    EXPECT_THAT(job.err, ContainsRegex("rank " + std::to_string(killed) + " .*signal 9 .*<- root cause"));
    EXPECT_EQ(job.exit_code, 137);
    if (HasFailure()) break;
  }
}

/// The last rank learns from the server that the start has failed. It has not ended before connect.
TEST_F(ConnectUnderRun, names_the_killed_rank_when_another_one_connects_after_it_died) {
  auto const file = "'" + (folder.path() / "pid").string() + "'";
  auto const job =
      run(3, "if [ $RANK = 1 ]; then echo $$ >" + file + "; fi; if [ $RANK = 2 ]; then while [ ! -s " + file +
                 " ] || kill -0 $(cat " + file + ") 2>/dev/null; do sleep 0.05; done; fi; exec env " +
                 scenario("rank_killed_under_run") + "1 1000000");
  for (auto const* const rank : {"[0] ", "[2] "})
    EXPECT_THAT(job.out, HasSubstr(std::string(rank) + "told peer_lost 1\n")) << job.err;
  EXPECT_THAT(job.err, ContainsRegex("rank 1 .*signal 9 .*<- root cause"));
  EXPECT_THAT(job.err, Not(HasSubstr("before connect")));
  EXPECT_EQ(job.exit_code, 137);
}

TEST_F(ConnectUnderRun, does_not_mention_connect_when_no_rank_calls_it) {
  auto const job = run(2, "exit $RANK");
  EXPECT_THAT(job.err, AllOf(Not(HasSubstr("connect")), HasSubstr("exit code 1"), HasSubstr("root cause")));
}

TEST_F(ConnectUnderRun, reports_a_launcher_that_was_started_inside) {
  auto const job = run(1, "export OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2;", "none");
  EXPECT_THAT(job.out, HasSubstr("mpirun was started inside `crossrank run`")) << job.err;
}

}  // namespace
}  // namespace crossrank
