#include <algorithm>

#include <gmock/gmock.h>

#include "lib/core/as_size.hpp"
#include "lib/platform/crash_point.hpp"
#include "tests/node/rendezvous_support.hpp"
#include "tests/support/process_ranks.hpp"

namespace crossrank::test {
namespace {

using testing::HasSubstr;

/// Arguments: rank that dies, and its crash point.
CROSSRANK_RANK_SCENARIO(die_at_the_rendezvous) {
  if (self.arguments.at(0) == std::to_string(self.rank)) platform::arm_crash_point(self.arguments.at(1), 1);
  auto const started = std::chrono::steady_clock::now();
  try {
    static_cast<void>(node::NodeComm::join(node_options(std::getenv("CROSSRANK_JOB_ID"), self.rank, self.world_size)));
  } catch (Error const& e) {
    EXPECT_EQ(e.code(), ErrorCode::peer_lost) << e.what();
    EXPECT_FALSE(e.group_usable());
    EXPECT_LT(std::chrono::steady_clock::now() - started, step_timeout / 2);
    self.say("lost");
    return 0;
  }
  self.say("joined");
  return 0;
}

/// Parameter: a crash point of a client or of the server. The race for the name decides which rank is the server.
class DeathAtTheRendezvous : public testing::TestWithParam<char const*> {};

TEST_P(DeathAtTheRendezvous, is_reported_to_all_others_at_once) {
  auto const job = run_ranks(3, "die_at_the_rendezvous", {.arguments = {"1", GetParam()}});
  EXPECT_FALSE(job.timed_out) << job.text();
  EXPECT_TRUE(job.leaks.empty()) << job.text();
  bool const died = job.ranks.at(1).signal == SIGKILL;
  for (int const rank : {0, 2}) {
    auto const& outcome = job.ranks.at(as_size(rank));
    EXPECT_EQ(outcome.exit_code, 0) << job.text();
    EXPECT_THAT(outcome.out, HasSubstr(died ? "lost" : "joined")) << job.text();
  }
}

INSTANTIATE_TEST_SUITE_P(After, DeathAtTheRendezvous,
                         testing::Values("node.rendezvous.client_sent_hello", "node.rendezvous.client_has_memory",
                                         "node.rendezvous.server_all_connected", "node.rendezvous.server_has_arenas",
                                         "node.segment.made"),
                         [](auto const& one) {
                           std::string name = one.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

}  // namespace
}  // namespace crossrank::test
