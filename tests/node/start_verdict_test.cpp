// A failing start. Every rank gets the same verdict, also a late one, whichever rank has died.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <crossrank/collective.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/node/rendezvous/pending_rendezvous.hpp"
#include "tests/node/rendezvous_support.hpp"
#include "tests/support/process_ranks.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank::test {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

/// Limit of every wait in these tests. Verdicts come long before.
constexpr auto step_limit = seconds(60);

std::string list(std::vector<int> const& ranks) {
  std::string text;
  for (int const rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
  return text;
}

/// Joins and prints how that ended: "code {failed ranks} message".
int say_how_it_ends(RankSelf const& self, node::NodeOptions const& options) {
  try {
    static_cast<void>(node::NodeComm::join(options));
    self.say("verdict ok");
  } catch (Error const& e) {
    EXPECT_FALSE(e.group_usable());
    self.say("verdict " + std::string(to_string(e.code())) + " {" + list(e.info().failed_ranks) + "} " +
             e.info().message + "; " + e.info().system);
  }
  return testing::Test::HasFailure() ? 1 : 0;
}

void wait_for(fs::path const& file) {
  auto const until = steady_clock::now() + step_limit;
  while (!fs::exists(file) && steady_clock::now() < until) std::this_thread::sleep_for(milliseconds(2));
}

node::NodeOptions start_options(RankSelf const& self) {
  return node_options(std::getenv("CROSSRANK_JOB_ID"), self.rank, self.world_size, step_limit);
}

std::string verdict_in(RankOutcome const& outcome) {
  auto const at = outcome.out.find("verdict ");
  return at == std::string::npos ? "none" : outcome.out.substr(at, outcome.out.find('\n', at) - at);
}

/// Expects the same verdict on all ranks but `victims`, and returns it.
std::string one_verdict(JobOutcome const& job, std::set<int> const& victims) {
  EXPECT_FALSE(job.timed_out) << job.text();
  EXPECT_TRUE(job.leaks.empty()) << job.text();
  std::set<std::string> verdicts;
  for (int rank = 0; rank < static_cast<int>(job.ranks.size()); ++rank) {
    if (!victims.contains(rank)) verdicts.insert(verdict_in(at_rank(job.ranks, rank)));
  }
  EXPECT_EQ(verdicts.size(), 1U) << job.text();
  return *verdicts.begin();
}

TEST(PendingRendezvous, is_listed_once_while_a_forked_child_has_it_open) {
  node::NodeOptions options;
  options.ranks = 2;
  node::PendingRendezvous const pending(options);
  pid_t const child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  ASSERT_GT(child, 0);
  auto const found = node::find_pending_rendezvous(::getpid());
  ::kill(child, SIGKILL);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found.front().where, "pid " + std::to_string(::getpid()));
}

/// Rank 0 comes first. The last rank waits for the file "late". Argument: directory.
CROSSRANK_RANK_SCENARIO(join_in_turn) {
  fs::path const folder = self.arguments.at(0);
  if (self.rank == self.world_size - 1) wait_for(folder / "late");
  if (self.rank == 0) std::ofstream(folder / "first") << "x";
  return say_how_it_ends(self, start_options(self));
}

struct LateRank : testing::Test {
  /// Waits until `count` ranks are in the rendezvous. Returns the process of the server.
  static pid_t server_of(ProcessRanks& job, int count) {
    auto const until = steady_clock::now() + step_limit;
    while (steady_clock::now() < until) {
      for (auto const& pending : node::find_pending_rendezvous(std::nullopt)) {
        if (pending.job == job.job_id() && static_cast<int>(pending.arrived.size()) == count)
          return std::stoi(pending.where.substr(4));
      }
      static_cast<void>(job.wait_for_line(0, "nothing", milliseconds(1)));
    }
    return -1;
  }
  void release() const { std::ofstream(folder.path() / "late") << "x"; }
  TemporaryDirectory folder;
};

TEST_F(LateRank, learns_that_the_server_died) {
  ProcessRanks job(4, "join_in_turn", {.deadline = 2 * step_limit, .arguments = {folder.path()}});
  pid_t const server = server_of(job, 3);
  ASSERT_GT(server, 0);
  int victim = 0;
  while (job.pid(victim) != server) ++victim;
  job.signal(victim, SIGKILL);
  ASSERT_TRUE(job.wait_for_exit(victim, step_limit));
  release();
  auto const verdict = one_verdict(job.wait(), {victim});
  EXPECT_THAT(verdict, HasSubstr("peer_lost {" + std::to_string(victim) + "} rank " + std::to_string(victim) +
                                 " (pid " + std::to_string(server)));
}

TEST_F(LateRank, learns_that_a_client_died_long_before) {
  ProcessRanks job(4, "join_in_turn", {.deadline = 2 * step_limit, .arguments = {folder.path()}});
  pid_t const server = server_of(job, 3);
  ASSERT_GT(server, 0);
  int const victim = job.pid(1) == server ? 2 : 1;
  job.signal(victim, SIGKILL);
  for (int rank = 0; rank < 3; ++rank) {
    if (job.pid(rank) != server) {
      ASSERT_TRUE(job.wait_for_exit(rank, step_limit));
    }
  }
  EXPECT_FALSE(job.wait_for_exit(3, milliseconds(1500)));  // the last rank is still waiting for its file
  release();
  EXPECT_THAT(one_verdict(job.wait(), {victim}), HasSubstr("peer_lost {" + std::to_string(victim) + "} rank "));
}

/// Rank 0 binds the name, lets all others connect, and is killed before it identifies itself.
CROSSRANK_RANK_SCENARIO(serve_without_a_word) {
  if (self.rank != 0) {
    wait_for(fs::path(self.arguments.at(0)) / "late");
    return say_how_it_ends(self, start_options(self));
  }
  int const listener = RendezvousAddress(std::getenv("CROSSRANK_JOB_ID")).squat(16);
  std::ofstream(fs::path(self.arguments.at(0)) / "late") << "x";
  for (int came = 1; came < self.world_size; ++came) EXPECT_GE(::accept(listener, nullptr, nullptr), 0);
  ::kill(::getpid(), SIGKILL);
  return 1;
}

TEST_F(LateRank, infers_which_rank_was_the_dead_server) {
  auto const job = run_ranks(4, "serve_without_a_word", {.deadline = 2 * step_limit, .arguments = {folder.path()}});
  EXPECT_THAT(one_verdict(job, {0}), HasSubstr("peer_lost {0} rank 0 (pid "));
}

/// Enough for the test to stop the server in time.
constexpr auto stop_timeout = seconds(6);

/// Ranks from the second argument on wait for the file "late". Arguments: directory, first late rank.
CROSSRANK_RANK_SCENARIO(join_a_stopped_server) {
  if (self.rank >= std::stoi(self.arguments.at(1))) wait_for(fs::path(self.arguments.at(0)) / "late");
  auto options = start_options(self);
  options.timeout = stop_timeout;
  return say_how_it_ends(self, options);
}

/// Some ranks have come before the server is stopped, and others come afterwards. The server continues once all others
/// have given up.
TEST_F(LateRank, blames_a_stopped_server_as_the_early_ranks_and_the_server_do) {
  for (int const early : {1, 2}) {
    SCOPED_TRACE(std::to_string(early) + " ranks come before the stop");
    TemporaryDirectory const place;
    ProcessRanks job(3, "join_a_stopped_server",
                     {.deadline = 2 * step_limit, .arguments = {place.path(), std::to_string(early)}});
    pid_t const server = server_of(job, early);
    ASSERT_GT(server, 0);
    int victim = 0;
    while (job.pid(victim) != server) ++victim;
    job.signal(victim, SIGSTOP);
    std::ofstream(place.path() / "late") << "x";
    for (int rank = 0; rank < 3; ++rank) {
      if (rank != victim) {
        ASSERT_TRUE(job.wait_for_exit(rank, step_limit));
      }
    }
    job.signal(victim, SIGCONT);
    auto const outcome = job.wait();
    auto const number = std::to_string(victim);
    auto const blamed = "timeout {" + number + "} rank " + number + " (pid " + std::to_string(server) + ")";
    EXPECT_THAT(one_verdict(outcome, {victim}), HasSubstr(blamed));
    EXPECT_THAT(verdict_in(outcome.ranks.at(as_size(victim))), HasSubstr(blamed));
  }
}

/// Argument: limit of open files.
CROSSRANK_RANK_SCENARIO(join_with_few_files) {
  rlimit const few{.rlim_cur = static_cast<rlim_t>(std::stoi(self.arguments.at(0))), .rlim_max = 4096};
  ::setrlimit(RLIMIT_NOFILE, &few);
  return say_how_it_ends(self, start_options(self));
}

/// The descriptors run out at any step of the start, on any rank. No rank may wait on alone.
TEST(StartVerdict, is_the_same_on_all_ranks_when_descriptors_run_out) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the undefined behaviour sanitizer needs descriptors of its own";
#endif
  std::set<std::string> codes;
  for (int const limit : {8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 22, 24, 28, 32, 48, 64}) {
    SCOPED_TRACE("ulimit -n " + std::to_string(limit));
    auto const started = steady_clock::now();
    auto const job =
        run_ranks(6, "join_with_few_files", {.deadline = 2 * step_limit, .arguments = {std::to_string(limit)}});
    auto const verdict = one_verdict(job, {});
    ASSERT_NE(verdict, "none") << job.text();
    codes.insert(verdict.substr(8, verdict.find(' ', 8) - 8));
    EXPECT_LT(steady_clock::now() - started, step_limit) << job.text();
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_THAT(codes, testing::ElementsAre("io", "ok"));
}

/// Argument: the rank that cannot start a thread.
CROSSRANK_RANK_SCENARIO(join_without_a_thread) {
  if (std::to_string(self.rank) == self.arguments.at(0)) {
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, std::size_t{1} << 47);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
  }
  return say_how_it_ends(self, start_options(self));
}

TEST(StartVerdict, is_a_typed_error_when_no_thread_can_start) {
  for (auto const* const rank : {"0", "1", "2"}) {
    auto const job = run_ranks(3, "join_without_a_thread", {.deadline = 2 * step_limit, .arguments = {rank}});
    EXPECT_THAT(one_verdict(job, {}),
                HasSubstr(std::string("unavailable {") + rank + "} rank " + rank + " could not attach"));
  }
}

/// Silent connections do not delay the ranks, however many there are.
TEST(StartVerdict, is_not_delayed_by_many_silent_connections) {
  auto const job = random_job_id();
  std::vector<int> crowd;
  auto const started = steady_clock::now();
  auto const errors =
      run_threads({[&] { static_cast<void>(node::NodeComm::join(node_options(job, 0, 2, step_limit))); },
                   [&] {
                     RendezvousAddress const place(job);
                     while (crowd.size() < 20 && steady_clock::now() < started + step_limit) {
                       if (int const visitor = place.visit(); visitor >= 0) crowd.push_back(visitor);
                     }
                     static_cast<void>(node::NodeComm::join(node_options(job, 1, 2, step_limit)));
                   }});
  for (auto const& error : errors) EXPECT_EQ(text_of(error), "");
  EXPECT_LT(steady_clock::now() - started, seconds(40));  // waiting 5 s for each would take 100 s
  for (int const visitor : crowd) ::close(visitor);
}

TEST(StartVerdict, says_that_another_job_may_use_the_id) {
  auto const job = random_job_id();
  auto const twice = join_all({node_options(job, 0, 2, milliseconds(500)), node_options(job, 0, 2, milliseconds(500))});
  EXPECT_THAT(text_of(twice[0]) + text_of(twice[1]), HasSubstr("another job may use this id"));
  auto const other =
      join_all({node_options(random_job_id() + "x", 0, 1), node_options(job, 0, 2), node_options(job, 1, 3)});
  EXPECT_EQ(text_of(other[0]), "");
  for (auto const index : {1U, 2U}) EXPECT_THAT(text_of(other[index]), HasSubstr("another job may use this id"));
}

TEST(StartVerdict, names_the_same_failed_ranks_in_text_and_list) {
  auto const job = random_job_id();
  std::vector<node::NodeOptions> few;
  for (int const rank : {1, 4}) few.push_back(node_options(job, rank, 6, milliseconds(300)));
  for (auto const& error : join_all(few)) {
    auto const info = expect_error<TimeoutError>(error);
    EXPECT_THAT(info.failed_ranks, testing::ElementsAre(0, 2, 3, 5));
    EXPECT_THAT(info.message, HasSubstr("0, 2-3, 5"));
  }
}

TEST(StartVerdict, refuses_ranks_that_declare_different_hosts) {
  auto const job = random_job_id();
  auto one = node_options(job, 0, 2);
  auto other = node_options(job, 1, 2);
  one.host_id = "a";
  other.host_id = "b";
  for (auto const& error : join_all({one, other})) {
    static_cast<void>(expect_error<MismatchError>(error));
    EXPECT_THAT(text_of(error), testing::AllOf(HasSubstr("\"a\""), HasSubstr("\"b\""), HasSubstr("CROSSRANK_HOST_ID")));
  }
  other.host_id = "a";
  for (auto const& error : join_all({one, other})) EXPECT_EQ(text_of(error), "");
}

}  // namespace
}  // namespace crossrank::test
