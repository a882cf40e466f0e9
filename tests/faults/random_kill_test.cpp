// A rank is killed at a random instant of a job that does one thing over and over, a thousand times in all.
//   CROSSRANK_KILL_SEED=N  the seed that a failed test has printed: draws the same victims and instants again
//   CROSSRANK_KILLS=N      how often each of these tests kills (default 100)
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <random>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include <crossrank/parallel.hpp>

#include "tests/faults/fault_report.hpp"
#include "tests/faults/fault_workload.hpp"
#include "tests/faults/kill_workload.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/clean_workspace.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;

constexpr int ranks = 4;

unsigned number_from_environment(char const* name, unsigned otherwise) {
  auto const* const text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

struct Plan {
  int victim = 0;
  int operations = -1;  ///< -1: by time
  int microseconds = 0;
};

/// Arguments: what to do, victim, operations, microseconds, directory.
CROSSRANK_RANK_SCENARIO(die_at_random) {
  auto const& what = self.arguments.at(0);
  bool const is_victim = std::stoi(self.arguments.at(1)) == self.rank;
  int const operations = std::stoi(self.arguments.at(2));
  std::chrono::microseconds const delay(std::stol(self.arguments.at(3)));
  return test::end_with_verdict(self, [&] {
    auto const world = connect(test::fault_options());
    if (is_victim && operations < 0) {
      std::thread([delay] {
        std::this_thread::sleep_for(delay);
        ::kill(::getpid(), SIGKILL);
      }).detach();
    }
    test::Fuse fuse(is_victim && operations >= 0, operations);
    if (what == "groups") test::gather_for_ever(world, fuse);
    if (what == "queues") test::queue_for_ever(world, fuse);
    if (what == "files") test::write_files_for_ever(world, fuse, self.arguments.at(4));
  });
}

struct Case {
  char const* what = "";
  unsigned number = 0;
};

/// For the names of tests in the listing.
void PrintTo(Case const& c, std::ostream* out) { *out << c.what << " " << c.number; }

class RandomKill : public testing::TestWithParam<Case> {
 protected:
  static test::JobOutcome run(Plan const& plan, fs::path const& directory) {
    return test::run_ranks(ranks, "die_at_random",
                           {.deadline = test::patient_for_a_job,
                            .arguments = {GetParam().what, std::to_string(plan.victim), std::to_string(plan.operations),
                                          std::to_string(plan.microseconds), directory}});
  }

  static Plan draw(std::mt19937& random) {
    auto const up_to = [&random](int most) { return std::uniform_int_distribution(0, most)(random); };
    Plan plan{.victim = up_to(ranks - 1)};
    bool const is_counted = up_to(1) == 1;
    plan.operations = is_counted ? up_to(25) : -1;
    plan.microseconds = up_to(20'000);
    return plan;
  }

  static void expect_victim_is_named(test::JobOutcome const& job, int victim) {
    auto const verdict = test::expect_one_verdict(job, {victim});
    EXPECT_EQ(verdict.code, "peer_lost") << job.text();
    EXPECT_TRUE(verdict.blames_only(victim)) << job.text();
  }
};

TEST_P(RandomKill, ends_all_ranks_with_one_verdict) {
  auto const seed = number_from_environment("CROSSRANK_KILL_SEED", std::random_device{}() + GetParam().number);
  auto const kills = number_from_environment("CROSSRANK_KILLS", 100);
  std::cout << "CROSSRANK_KILL_SEED=" << seed << std::endl;
  std::mt19937 random(seed);
  for (unsigned kill = 0; kill < kills && !HasFailure(); ++kill) {
    test::TemporaryDirectory const temporary;
    auto const plan = draw(random);
    SCOPED_TRACE("CROSSRANK_KILL_SEED=" + std::to_string(seed) + ", kill " + std::to_string(kill) + ": rank " +
                 std::to_string(plan.victim) + ", operation " + std::to_string(plan.operations) + ", or after " +
                 std::to_string(plan.microseconds) + " us");
    auto const job = run(plan, temporary.path());
    expect_victim_is_named(job, plan.victim);
    for (auto const* const name : {"kept", "gathered"}) {
      if (!fs::exists(temporary.path() / name)) continue;
      static_cast<void>(workspace::clean_workspace(temporary.path() / name));
      EXPECT_TRUE(fs::is_empty(temporary.path() / name)) << "files are left that nobody knows\n" << job.text();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, RandomKill,
                         testing::Values(Case{"groups", 0}, Case{"groups", 1}, Case{"queues", 0}, Case{"queues", 1},
                                         Case{"queues", 2}, Case{"queues", 3}, Case{"queues", 4}, Case{"files", 0},
                                         Case{"files", 1}, Case{"files", 2}),
                         [](auto const& one) {
                           return std::string(one.param.what) + "_" + std::to_string(one.param.number);
                         });

}  // namespace
}  // namespace crossrank
