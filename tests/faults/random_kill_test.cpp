// A rank is killed at a random instant of a job that does everything over and over.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <random>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include <crossrank/parallel.hpp>

#include "tests/faults/fault_report.hpp"
#include "tests/faults/fault_workload.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank {
namespace {

constexpr int ranks = 4;
constexpr int kills_each = 50;

/// Counts the victim's operations down and kills it before the next one.
class Fuse {
 public:
  Fuse(bool is_victim, int operations) : left_(is_victim ? operations : -1) {}
  void step() {
    if (left_-- == 0) ::kill(::getpid(), SIGKILL);
  }

 private:
  int left_;
};

void loop(Collective const& world, Fuse& fuse) {
  for (int round = 0;; ++round) {
    fuse.step();
    world.barrier();
    fuse.step();
    test::gather_everything(world, round % world.world_size(), round);
    fuse.step();
    auto half = world.split({{0, 1}, {3, 2}});
    fuse.step();
    test::in_group(half, [&] {
      test::gather_everything(half, round % 2, round);
      fuse.step();
      half.close();
    });
  }
}

/// Arguments: victim, operations (or -1), microseconds.
CROSSRANK_RANK_SCENARIO(die_at_random) {
  bool const is_victim = std::stoi(self.arguments.at(0)) == self.rank;
  int const operations = std::stoi(self.arguments.at(1));
  std::chrono::microseconds const delay(std::stol(self.arguments.at(2)));
  return test::end_with_verdict(self, [&] {
    auto const world = connect(test::fault_options());
    if (is_victim && operations < 0) {
      std::thread([delay] {
        std::this_thread::sleep_for(delay);
        ::kill(::getpid(), SIGKILL);
      }).detach();
    }
    Fuse fuse(is_victim && operations >= 0, operations);
    loop(world, fuse);
  });
}

class RandomKill : public testing::TestWithParam<unsigned> {};

TEST_P(RandomKill, ends_all_ranks_with_one_verdict) {
  auto const seed = std::random_device{}() + GetParam();
  RecordProperty("seed", static_cast<int>(seed & 0x7fffffff));
  std::mt19937 random(seed);
  for (int kill = 0; kill < kills_each; ++kill) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", kill " + std::to_string(kill));
    int const victim = std::uniform_int_distribution(0, ranks - 1)(random);
    bool const counted = std::uniform_int_distribution(0, 1)(random) == 1;
    int const operations = std::uniform_int_distribution(0, 25)(random);
    int const microseconds = std::uniform_int_distribution(0, 20'000)(random);
    auto const job = test::run_ranks(ranks, "die_at_random",
                                     {.deadline = std::chrono::seconds(100),
                                      .arguments = {std::to_string(victim), std::to_string(counted ? operations : -1),
                                                    std::to_string(microseconds)}});
    auto const verdict = test::expect_one_verdict(job, {victim});
    EXPECT_EQ(verdict.code, "peer_lost") << job.text();
    EXPECT_TRUE(verdict.blames_only(victim)) << job.text();
    if (HasFailure()) break;
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, RandomKill, testing::Values(0U, 1U, 2U, 3U));

}  // namespace
}  // namespace crossrank
