// Kills a rank at each named crash point: as server and as client of the rendezvous, as receiver and as writer.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <ostream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "crash_points.generated.hpp"
#include "lib/core/as_size.hpp"
#include "lib/node/memory/segment_names.hpp"
#include "lib/platform/crash_point.hpp"
#include "tests/faults/fault_report.hpp"
#include "tests/faults/fault_workload.hpp"
#include "tests/faults/limited_system.hpp"
#include "tests/support/leak_check.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/nfs/clean_workspace.hpp"

namespace crossrank::crash_point_kill_test {
namespace {

namespace fs = std::filesystem;
using test::ProcessRanks;
using test::Verdict;

constexpr int ranks = 3;

struct Case {
  std::string point{};
  int victim = 0;
  int visit = 1;  ///< number of the visit at which the victim dies
};

/// Shown in the list of tests.
void PrintTo(Case const& c, std::ostream* out) { *out << c.point << ", rank " << c.victim << ", visit " << c.visit; }

bool starts_with_any(std::string_view name, std::vector<std::string_view> const& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](auto prefix) { return name.starts_with(prefix); });
}

/// Returns whether the point is reached before the rendezvous has ended.
bool while_connecting(std::string_view point) {
  return starts_with_any(point, {"node.rendezvous.", "node.segment.", "node.named.", "node.comm."});
}
bool needs_names(std::string_view point) { return point.starts_with("node.named."); }
bool needs_no_memfd(std::string_view point) { return point == "node.segment.named"; }
/// Returns whether the victim must be the rank that the others find.
bool needs_first(std::string_view point) {
  return starts_with_any(point, {"node.rendezvous.server", "node.rendezvous.bound", "node.named."});
}

/// Where the others may not know of the victim, because it dies before they find it, they wait for the whole timeout.
/// Elsewhere it only ends a hang.
std::chrono::milliseconds connect_timeout_of(std::string_view point) {
  bool const is_waited_for =
      needs_names(point) || point == "node.rendezvous.bound" || point == "node.rendezvous.server_listens";
  return is_waited_for ? std::chrono::seconds(20) : test::step_timeout;
}

/// Returns whether only a rank that ends a group reaches the point.
bool while_failing(std::string_view point) { return point.starts_with("node.group.failing."); }

int first_of(Case const& c) { return needs_first(c.point) || c.victim == 2 ? c.victim : 2; }

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (auto const point : test::crash_points) {
    if (point.starts_with("checkpoint.")) continue;  // tests/checkpoint/write/crash_test.cpp covers those
    if (point.starts_with("parts.")) continue;       // tests/checkpoint/parts/parts_crash_test.cpp covers those
    if (point.starts_with("export.")) continue;      // tests/checkpoint/memory/export_faults_test.cpp covers those
    if (while_failing(point)) continue;
    if (point == "node.queue.failing") continue;  // queue_verdict_test.cpp covers it
    for (int const victim : {0, 1}) {
      cases.push_back({std::string(point), victim, 1});
      if (!while_connecting(point)) cases.push_back({std::string(point), victim, 4});
    }
  }
  return cases;
}

std::string name_of(testing::TestParamInfo<Case> const& info) {
  auto name =
      info.param.point + "_rank" + std::to_string(info.param.victim) + "_visit" + std::to_string(info.param.visit);
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

/// Arguments: directory, point, victim, visit, rank that comes first, refuse sockets, refuse memfd.
CROSSRANK_RANK_SCENARIO(die_at_crash_point) {
  fs::path const directory = self.arguments.at(0);
  bool const is_first = std::stoi(self.arguments.at(4)) == self.rank;
  test::LimitedSystem system;
  system.refuse_sockets = self.arguments.at(5) == "1";
  system.refuse_memfd = self.arguments.at(6) == "1";
  if (is_first) system.mark = directory / "first_is_there";
  platform::ScopedSystem const scoped(system);
  if (std::stoi(self.arguments.at(2)) == self.rank)
    platform::arm_crash_point(self.arguments.at(1), std::stoi(self.arguments.at(3)));
  return test::end_with_verdict(self, [&] {
    auto const until = std::chrono::steady_clock::now() + test::step_timeout;
    while (!is_first && !fs::exists(directory / "first_is_there") && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
    auto options = test::fault_options();
    options.connect_timeout = connect_timeout_of(self.arguments.at(1));
    test::use_everything(connect(options), directory / "workspace");
  });
}

/// Expects that the survivors blame the victim and no other rank.
void expect_names_victim(Verdict const& verdict, Case const& c, std::string const& context) {
  EXPECT_TRUE(verdict.blames_only(c.victim)) << context;
  EXPECT_TRUE(verdict.code == "peer_lost" || verdict.code == "timeout") << context;
}

void expect_nothing_left(fs::path const& directory) {
  static_cast<void>(node::sweep_names());  // as the next start does
  if (!fs::exists(directory)) return;
  static_cast<void>(workspace::clean_workspace(directory));
  EXPECT_TRUE(fs::is_empty(directory)) << fs::directory_iterator(directory)->path();
}

class KillAtCrashPoint : public testing::TestWithParam<Case> {};

TEST_P(KillAtCrashPoint, makes_all_survivors_blame_the_victim) {
  auto const& c = GetParam();
  test::TemporaryDirectory const temporary;
  test::LeakCheck const leaks;
  ProcessRanks job(ranks, "die_at_crash_point",
                   {.deadline = std::chrono::seconds(120),
                    .arguments = {temporary.path(), c.point, std::to_string(c.victim), std::to_string(c.visit),
                                  std::to_string(first_of(c)), needs_names(c.point) ? "1" : "0",
                                  needs_no_memfd(c.point) ? "1" : "0"}});
  for (int rank = 0; rank < ranks; ++rank) static_cast<void>(job.wait_for_exit(rank, std::chrono::seconds(120)));
  expect_nothing_left(temporary.path() / "workspace");
  auto const outcome = job.wait();

  auto const& victim = outcome.ranks.at(as_size(c.victim));
  if (c.visit == 1) {
    ASSERT_EQ(victim.signal, SIGKILL) << "the point was never reached\n" << outcome.text();
  } else if (victim.signal == 0) {
    EXPECT_EQ(test::expect_one_verdict(outcome).code, "ok") << outcome.text();
    return;
  }
  if (while_connecting(c.point)) {
    expect_names_victim(test::expect_one_verdict(outcome, {c.victim}), c, outcome.text());
    return;
  }
  auto const verdict = test::expect_one_verdict(outcome, {c.victim});
  if (verdict.code == "ok") return;  // its part was done before it died
  EXPECT_EQ(verdict.code, "peer_lost") << outcome.text();
  EXPECT_TRUE(verdict.blames_only(c.victim)) << outcome.text();
}

INSTANTIATE_TEST_SUITE_P(Faults, KillAtCrashPoint, testing::ValuesIn(all_cases()), name_of);

/// The victim aborts the group and dies while doing so. Arguments: point, victim.
CROSSRANK_RANK_SCENARIO(die_while_failing) {
  bool const is_victim = std::stoi(self.arguments.at(1)) == self.rank;
  return test::end_with_verdict(self, [&] {
    auto world = connect(test::fault_options());
    world.barrier();
    if (is_victim) {
      platform::arm_crash_point(self.arguments.at(0), 1);
      world.abort("enough");
    }
    world.barrier();
  });
}

std::vector<Case> failing_cases() {
  std::vector<Case> cases;
  for (auto const point : test::crash_points) {
    if (!while_failing(point)) continue;
    for (int const victim : {0, ranks - 1}) cases.push_back({std::string(point), victim});
  }
  return cases;
}

class KillWhileFailing : public testing::TestWithParam<Case> {};

TEST_P(KillWhileFailing, gives_all_survivors_the_same_verdict) {
  auto const& c = GetParam();
  test::LeakCheck const leaks;
  ProcessRanks job(ranks, "die_while_failing",
                   {.deadline = std::chrono::seconds(120), .arguments = {c.point, std::to_string(c.victim)}});
  auto const outcome = job.wait();

  EXPECT_EQ(outcome.ranks.at(as_size(c.victim)).signal, SIGKILL) << outcome.text();
  auto const verdict = test::expect_one_verdict(outcome, {c.victim});
  EXPECT_EQ(verdict.code, "peer_lost") << outcome.text();
  EXPECT_TRUE(verdict.blames_only(c.victim)) << outcome.text();
}

INSTANTIATE_TEST_SUITE_P(Faults, KillWhileFailing, testing::ValuesIn(failing_cases()), name_of);

}  // namespace
}  // namespace crossrank::crash_point_kill_test
