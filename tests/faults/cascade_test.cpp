// A death also ends groups that the dead rank was not a member of, because the ranks that lost it leave those groups.
// The error names the rank that died first, over any number of groups.
#include <csignal>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "tests/faults/fault_report.hpp"

namespace crossrank {
namespace {

using testing::HasSubstr;

/// Builds a chain of pairs {0,1}, {1,2}, {2,3}. Each rank waits for the one before it, and rank 0 dies.
/// Argument: whether a rank that lost another one ends with the exception ("uncaught") or in order ("in_order").
CROSSRANK_RANK_SCENARIO(wait_in_a_chain) {
  bool const uncaught = self.arguments.at(0) == "uncaught";
  auto const world = connect(test::fault_options());
  std::vector<Collective> pairs;
  for (int first = 0; first + 1 < self.world_size; ++first) pairs.push_back(world.split({{first, first + 1}}));
  world.barrier();
  if (self.rank == 0) ::kill(::getpid(), SIGKILL);
  auto const wait = [&] { pairs.at(as_size(self.rank) - 1).barrier(); };
  if (!uncaught) return test::end_with_verdict(self, wait);
  try {
    wait();
  } catch (Error const& e) {
    test::say_verdict(self, "end", [&] { throw_error(e.code(), e.info()); });
    throw;
  }
  return 0;
}

class Cascade : public testing::TestWithParam<char const*> {};

TEST_P(Cascade, carries_the_root_cause_to_ranks_without_a_common_group) {
  auto const job = test::run_ranks(4, "wait_in_a_chain", {.arguments = {GetParam()}});
  EXPECT_FALSE(job.timed_out) << job.text();
  EXPECT_TRUE(job.leaks.empty()) << job.text();
  for (int rank = 1; rank < 4; ++rank) {
    auto const verdict = test::verdict_of(job.ranks.at(as_size(rank)));
    EXPECT_EQ(verdict.code, "peer_lost") << job.text();
    EXPECT_TRUE(verdict.blames_only(0)) << "the first of the pair\n" << job.text();
    EXPECT_THAT(verdict.text, HasSubstr("died")) << job.text();
    if (rank == 1) continue;
    EXPECT_THAT(verdict.text, HasSubstr("root cause: rank 0 of the job died")) << job.text();
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, Cascade, testing::Values("in_order", "uncaught"),
                         [](auto const& one) { return std::string(one.param); });

}  // namespace
}  // namespace crossrank
