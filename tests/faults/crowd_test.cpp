// Many ranks, many jobs, many groups on one host.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include <grp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/faults/fault_report.hpp"
#include "tests/faults/fault_workload.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank {
namespace {

using test::ProcessRanks;

constexpr unsigned nobody = 65534;

/// Turns the process into one of an ordinary user, without privileges and with 1,024 descriptors.
bool become_ordinary() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max = std::min<rlim_t>(limit.rlim_max, 1024);
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  if (::geteuid() != 0) return true;
  return ::setgroups(0, nullptr) == 0 && ::setresgid(nobody, nobody, nobody) == 0 &&
         ::setresuid(nobody, nobody, nobody) == 0;
}

CROSSRANK_RANK_SCENARIO(be_one_of_many) {
  if (!become_ordinary()) return 77;
  return test::end_with_verdict(self, [&] {
    auto options = test::fault_options(std::chrono::seconds(120));
    options.connect_timeout = test::step_timeout;
    auto world = connect(options);
    world.barrier();
    world.close();
  });
}

TEST(FaultsCrowd, starts_64_ranks_of_an_ordinary_user_at_once) {
  auto const job = test::run_ranks(64, "be_one_of_many", {.deadline = std::chrono::seconds(240)});
  if (job.ranks.front().exit_code == 77) GTEST_SKIP() << "this process cannot become an ordinary user";
  EXPECT_EQ(test::expect_one_verdict(job).code, "ok") << job.text();
}

CROSSRANK_RANK_SCENARIO(work_in_crowd) {
  return test::end_with_verdict(self,
                                [&] { test::use_everything(connect(test::fault_options()), self.arguments.at(0)); });
}

TEST(FaultsCrowd, lets_two_jobs_share_a_host_and_a_directory) {
  test::TemporaryDirectory const temporary;
  auto const directory = temporary.path() / "workspace";
  ProcessRanks first(3, "work_in_crowd", {.deadline = std::chrono::seconds(120), .arguments = {directory}});
  ProcessRanks second(3, "work_in_crowd", {.deadline = std::chrono::seconds(120), .arguments = {directory}});
  auto const one = first.wait();
  auto const other = second.wait();
  EXPECT_EQ(test::expect_one_verdict(one).code, "ok") << one.text();
  EXPECT_EQ(test::expect_one_verdict(other).code, "ok") << other.text();
  EXPECT_TRUE(std::filesystem::is_empty(directory));
}

CROSSRANK_RANK_SCENARIO(use_two_groups_in_two_threads) {
  return test::end_with_verdict(self, [&] {
    auto world = connect(test::fault_options());
    auto one = world.split({{0, 1, 2}});
    auto other = world.split({{2, 1, 0}});
    test::Verdict failed;
    std::thread thread([&] {
      test::say_verdict(self, "thread", [&] {
        for (int round = 0; round < 30; ++round) test::gather_everything(other, round % 3, 1000 + round);
        other.close();
      });
    });
    test::say_verdict(self, "main", [&] {
      for (int round = 0; round < 30; ++round) test::gather_everything(one, round % 3, round);
      one.close();
    });
    thread.join();
    world.close();
  });
}

TEST(FaultsCrowd, lets_two_threads_use_two_groups) {
  auto const job = test::run_ranks(3, "use_two_groups_in_two_threads", {.deadline = std::chrono::seconds(120)});
  for (auto const* const label : {"thread", "main", "end"})
    EXPECT_EQ(test::expect_one_verdict(job, {}, label).code, "ok") << job.text();
}

}  // namespace
}  // namespace crossrank
