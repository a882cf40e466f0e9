// Kills one rank of a job at a random instant, a thousand times in all. Each job repeats one workload.
//   CROSSRANK_KILL_SEED=N  seed that a failed test printed; repeats its victims and instants
//   CROSSRANK_KILLS=N      number of kills of each test (default 100)
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include <crossrank/parallel.hpp>

#include "lib/core/as_size.hpp"
#include "lib/platform/system.hpp"
#include "tests/faults/fault_report.hpp"
#include "tests/faults/fault_workload.hpp"
#include "tests/faults/kill_workload.hpp"
#include "tests/support/timeouts.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/nfs/clean_workspace.hpp"

namespace crossrank::random_kill_test {
namespace {

namespace fs = std::filesystem;

constexpr int ranks = 4;
constexpr auto rendezvous_limit = std::chrono::seconds(30);

unsigned number_from_environment(char const* name, unsigned otherwise) {
  auto const* const text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

/// Kills this process before one of its system calls in `connect`. Counting begins when the other ranks can know of it:
/// before that, they cannot tell a dead rank from one that was never started.
class MortalSystem final : public platform::System {
 public:
  explicit MortalSystem(int calls) : left_(calls) {}

  ssize_t sendmsg(int fd, msghdr const* message, int flags) override {
    auto const result = System::sendmsg(fd, message, flags);
    if (result >= 0) known_ = true;
    step();
    return result;
  }
  int listen(int fd, int backlog) override {
    int const result = System::listen(fd, backlog);
    if (result == 0) known_ = true;
    step();
    return result;
  }
  ssize_t recvmsg(int fd, msghdr* message, int flags) override {
    step();
    return System::recvmsg(fd, message, flags);
  }
  int poll(pollfd* fds, nfds_t count, int timeout_ms) override {
    step();
    return System::poll(fds, count, timeout_ms);
  }
  int accept(int fd) override {
    step();
    return System::accept(fd);
  }
  int memfd_create(char const* name, unsigned flags) override {
    step();
    return System::memfd_create(name, flags);
  }
  int fallocate(int fd, int mode, off_t at, off_t bytes) override {
    step();
    return System::fallocate(fd, mode, at, bytes);
  }

 private:
  void step() {
    if (known_ && left_-- <= 0) ::kill(::getpid(), SIGKILL);
  }

  std::atomic<bool> known_{false};
  std::atomic<int> left_;
};

struct Plan {
  int victim = 0;
  int operations = -1;  ///< -1: kill by time
  int microseconds = 0;
  unsigned seed = 0;
};

/// Arguments: workload, victim, operations, microseconds, seed, directory.
CROSSRANK_RANK_SCENARIO(die_at_random) {
  auto const& what = self.arguments.at(0);
  bool const is_victim = std::stoi(self.arguments.at(1)) == self.rank;
  int const operations = std::stoi(self.arguments.at(2));
  std::chrono::microseconds const delay(std::stol(self.arguments.at(3)));
  return test::end_with_verdict(self, [&] {
    auto options = test::fault_options();
    options.connect_timeout = rendezvous_limit;
    MortalSystem mortal(operations);
    if (what == "connect") {
      std::optional<platform::ScopedSystem> installed;
      if (is_victim) installed.emplace(mortal);
      auto const world = connect(options);
      if (is_victim) ::kill(::getpid(), SIGKILL);
      while (true) world.barrier();
    }
    auto const world = connect(options);
    if (is_victim && operations < 0) {
      std::thread([delay] {
        std::this_thread::sleep_for(delay);
        ::kill(::getpid(), SIGKILL);
      }).detach();
    }
    test::Fuse fuse(is_victim && operations >= 0, operations);
    if (what == "groups") test::gather_for_ever(world, fuse);
    if (what == "queues") test::queue_for_ever(world, fuse);
    if (what == "files") test::write_files_for_ever(world, fuse, self.arguments.at(5));
    if (what == "exits") test::leave_in_order(world, fuse, static_cast<unsigned>(std::stoul(self.arguments.at(4))));
  });
}

struct Case {
  char const* what = "";
  unsigned number = 0;
};

class RandomKill : public testing::TestWithParam<Case> {
 protected:
  static test::JobOutcome run(Plan const& plan, fs::path const& directory) {
    return test::run_ranks(ranks, "die_at_random",
                           {.deadline = test::job_timeout,
                            .arguments = {GetParam().what, std::to_string(plan.victim), std::to_string(plan.operations),
                                          std::to_string(plan.microseconds), std::to_string(plan.seed), directory}});
  }

  static Plan draw(std::mt19937& random) {
    auto const up_to = [&random](int max) { return std::uniform_int_distribution(0, max)(random); };
    bool const is_connect = std::string_view(GetParam().what) == "connect";
    Plan plan{.victim = up_to(ranks - 1)};
    bool const counted = up_to(1) == 1 || is_connect;
    plan.operations = counted ? up_to(is_connect ? 37 : 25) : -1;
    // After fewer system calls no rank can know of the victim, and the others wait until their timeout.
    if (is_connect) plan.operations += 3;
    plan.microseconds = up_to(std::string_view(GetParam().what) == "exits" ? 5'000 : 20'000);
    plan.seed = static_cast<unsigned>(random());
    return plan;
  }

  static void expect_victim_is_named(test::JobOutcome const& job, int victim) {
    auto const verdict = test::expect_one_verdict(job, {victim});
    bool const unseen = std::string_view(GetParam().what) == "connect" && verdict.code == "timeout";
    EXPECT_TRUE(verdict.code == "peer_lost" || unseen) << job.text();
    EXPECT_TRUE(verdict.blames_only(victim)) << job.text();
  }

  /// Expects success from ranks whose part was done when the victim died, and otherwise an error that blames it.
  static void expect_order_or_victim(test::JobOutcome const& job, int victim) {
    EXPECT_FALSE(job.timed_out) << job.text();
    EXPECT_TRUE(job.leaks.empty()) << job.text();
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == victim) continue;
      auto const verdict = test::verdict_of(job.ranks.at(as_size(rank)));
      EXPECT_TRUE(verdict.code == "ok" || (verdict.code == "peer_lost" && verdict.blames_only(victim)))
          << "rank " << rank << "\n"
          << job.text();
    }
  }
};

TEST_P(RandomKill, gives_all_survivors_the_same_verdict) {
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
    if (std::string_view(GetParam().what) == "exits") {
      expect_order_or_victim(job, plan.victim);
    } else {
      expect_victim_is_named(job, plan.victim);
    }
    for (auto const* const name : {"kept", "gathered"}) {
      if (!fs::exists(temporary.path() / name)) continue;
      static_cast<void>(workspace::clean_workspace(temporary.path() / name));
      EXPECT_TRUE(fs::is_empty(temporary.path() / name)) << "unexpected files are left\n" << job.text();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, RandomKill,
                         testing::Values(Case{"groups", 0}, Case{"groups", 1}, Case{"queues", 0}, Case{"queues", 1},
                                         Case{"queues", 2}, Case{"files", 0}, Case{"files", 1}, Case{"connect", 0},
                                         Case{"connect", 1}, Case{"exits", 0}),
                         [](auto const& one) {
                           return std::string(one.param.what) + "_" + std::to_string(one.param.number);
                         });

}  // namespace
}  // namespace crossrank::random_kill_test
