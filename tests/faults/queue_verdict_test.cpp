// All endpoints of a queue blame the same rank, whichever rank is stopped or killed and whichever notices first.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <crossrank/error.hpp>
#include <crossrank/message_queue.hpp>

#include "lib/core/as_size.hpp"
#include "lib/platform/crash_point.hpp"
#include "tests/faults/fault_report.hpp"

namespace crossrank::queue_verdict_test {
namespace {

using test::ProcessRanks;
using testing::HasSubstr;
using testing::Not;

constexpr auto step_timeout = test::step_timeout;

/// Prints how `body` ended and terminates after an error, as a program without a handler does.
int end_uncaught(test::RankSelf const& self, std::function<void()> const& body) {
  try {
    body();
  } catch (Error const& e) {
    test::say_verdict(self, "end", [&] { throw_error(e.code(), e.info()); });
    std::terminate();
  }
  return 0;
}

void stream(test::RankSelf const& self, MessageQueue const& queue) {
  for (int i = 0;; ++i) {
    if (queue.is_writer()) {
      queue.enqueue(i);
    } else {
      EXPECT_EQ(queue.dequeue<int>(), i);
    }
    if (i == 5) self.say("working");
    test::note_progress();
  }
}

/// One rank writes and all others read until something fails. The ranks take the timeout from CROSSRANK_TIMEOUT.
/// Arguments: writer, how a failing rank ends ("in_order", "uncaught").
CROSSRANK_RANK_SCENARIO(stream_for_ever) {
  auto const body = [&] {
    auto const world = connect();
    stream(self, MessageQueue::create(world, {.writer_rank = std::stoi(self.arguments.at(0)), .chunks = 3}));
  };
  return self.arguments.at(1) == "uncaught" ? end_uncaught(self, body) : test::end_with_verdict(self, body);
}

struct Case {
  int writer = 0;
  int victim = 2;
  char const* ending = "in_order";
};

std::string name_of(testing::TestParamInfo<Case> const& info) {
  auto const& [writer, victim, ending] = info.param;
  return "rank" + std::to_string(victim) + (victim == writer ? "_writes_" : "_reads_") + ending;
}

test::RankOptions options_of(Case const& c, std::string const& timeout) {
  return {.arguments = {std::to_string(c.writer), c.ending}, .environment = {{"CROSSRANK_TIMEOUT", timeout}}};
}

void expect_verdicts(test::JobOutcome const& outcome, std::vector<int> const& ranks, std::string const& code,
                     int blamed) {
  for (int const rank : ranks) {
    auto const verdict = test::verdict_of(outcome.ranks.at(as_size(rank)));
    EXPECT_EQ(verdict.code, code) << "rank " << rank << "\n" << outcome.text();
    EXPECT_TRUE(verdict.blames_only(blamed)) << "rank " << rank << "\n" << outcome.text();
    EXPECT_THAT(verdict.text, Not(HasSubstr("make a new queue"))) << "the group has ended\n" << outcome.text();
  }
}

std::vector<int> all_but(int rank, int ranks) {
  std::vector<int> others;
  for (int other = 0; other < ranks; ++other) {
    if (other != rank) others.push_back(other);
  }
  return others;
}

class QueueVerdict : public testing::TestWithParam<Case> {
 protected:
  static constexpr int ranks = 4;
  static void start(ProcessRanks& job) {
    for (int rank = 0; rank < ranks; ++rank) ASSERT_TRUE(job.wait_for_line(rank, "working", step_timeout));
  }
};

TEST_P(QueueVerdict, names_the_rank_that_was_killed) {
  auto const& c = GetParam();
  ProcessRanks job(ranks, "stream_for_ever", options_of(c, "300"));
  start(job);
  job.signal(c.victim, SIGKILL);
  expect_verdicts(job.wait(), all_but(c.victim, ranks), "peer_lost", c.victim);
}

/// The deadlines of the others pass at nearly the same moment, and the first of them leaves at once.
TEST_P(QueueVerdict, names_the_rank_that_was_stopped) {
  auto const& c = GetParam();
  auto const others = all_but(c.victim, ranks);
  ProcessRanks job(ranks, "stream_for_ever", options_of(c, std::to_string(test::short_timeout.count()) + "ms"));
  start(job);
  job.signal(c.victim, SIGSTOP);
  for (int const rank : others) ASSERT_TRUE(job.wait_for_exit(rank, step_timeout));
  job.signal(c.victim, SIGCONT);
  auto const outcome = job.wait();
  expect_verdicts(outcome, others, "timeout", c.victim);
  // It reads the remaining messages and then gets the error.
  auto const own = test::verdict_of(outcome.ranks.at(as_size(c.victim)));
  EXPECT_TRUE(own.blames_only(c.victim)) << outcome.text();
}

INSTANTIATE_TEST_SUITE_P(Faults, QueueVerdict,
                         testing::Values(Case{0, 2, "in_order"}, Case{0, 2, "uncaught"}, Case{0, 1, "in_order"},
                                         Case{1, 1, "in_order"}, Case{0, 0, "uncaught"}, Case{3, 0, "uncaught"}),
                         name_of);

/// One queue leads from rank 0 to rank 1 and one from rank 1 to rank 2, which is stopped. Rank 0 waits for rank 1,
/// which itself only waits.
CROSSRANK_RANK_SCENARIO(pass_on_for_ever) {
  return test::end_with_verdict(self, [&] {
    auto const world = connect();
    auto queue = self.rank < 2 ? MessageQueue::create_writer(world, 1, {.chunks = 2}) : MessageQueue();
    auto const handles = world.all_gatherv(self.rank < 2 ? queue.handle() : std::vector<std::byte>{});
    auto from = self.rank > 0 ? MessageQueue::attach(handles.at(as_size(self.rank) - 1), 0) : MessageQueue();
    world.barrier();
    for (int i = 0;; ++i) {
      if (from.connected()) {
        EXPECT_EQ(from.dequeue<int>(), i);
      }
      if (queue.connected()) queue.enqueue(i);
      if (i == 5) self.say("working");
      test::note_progress();
    }
  });
}

TEST(QueueVerdicts, follow_a_chain_of_queues_to_the_stopped_rank) {
  // Rank 1 has a longer timeout, so that it still waits when rank 0 decides.
  auto const limit = [](int factor) { return std::to_string((factor * test::short_timeout).count()) + "ms"; };
  ProcessRanks job(
      3, "pass_on_for_ever",
      {.environment = {{"CROSSRANK_TIMEOUT", limit(1)}}, .rank_environment = {{1, {{"CROSSRANK_TIMEOUT", limit(2)}}}}});
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(job.wait_for_line(rank, "working", step_timeout));
  job.signal(2, SIGSTOP);
  for (int const rank : {0, 1}) ASSERT_TRUE(job.wait_for_exit(rank, step_timeout));
  job.signal(2, SIGCONT);
  auto const outcome = job.wait();
  for (std::size_t const rank : {0U, 1U})
    EXPECT_TRUE(test::verdict_of(outcome.ranks.at(rank)).blames_only(2)) << outcome.text();
}

/// A rank that polls for messages now and then is killed between two polls. It is dead; the state that it noted in its
/// last poll is not the cause.
CROSSRANK_RANK_SCENARIO(die_between_polls) {
  return test::end_with_verdict(self, [&] {
    auto const world = connect(test::fault_options());
    auto const queue = MessageQueue::create(world, {.chunks = 1});
    if (self.rank == 1) {
      EXPECT_THROW(static_cast<void>(queue.dequeue<int>({.timeout = std::chrono::milliseconds(1)})), TimeoutError);
      ::kill(::getpid(), SIGKILL);
    }
    for (int i = 0; queue.is_writer(); ++i) queue.enqueue(i);
    while (true) static_cast<void>(queue.dequeue<int>());
  });
}

TEST(QueueVerdicts, blame_a_killed_rank_whatever_it_noted_before) {
  auto const outcome = test::run_ranks(3, "die_between_polls");
  expect_verdicts(outcome, {0, 2}, "peer_lost", 1);
}

/// A reader polls once for messages and leaves later, for reasons of its own. Argument: how it leaves ("drop", "exit").
CROSSRANK_RANK_SCENARIO(leave_after_a_poll) {
  return test::end_with_verdict(self, [&] {
    auto const world = connect(test::fault_options());
    auto queue = MessageQueue::create(world, {.chunks = 2});
    if (self.rank == 2) {
      EXPECT_THROW(static_cast<void>(queue.dequeue<int>({.timeout = std::chrono::milliseconds(1)})), TimeoutError);
      if (self.arguments.at(0) == "exit") std::exit(0);
      queue = {};
    }
    for (int i = 0; queue.connected() && queue.is_writer(); ++i) queue.enqueue(i);
    while (queue.connected()) static_cast<void>(queue.dequeue<int>());
  });
}

TEST(QueueVerdicts, blame_a_reader_that_leaves_after_a_poll) {
  for (auto const* const how : {"drop", "exit"}) {
    auto const outcome = test::run_ranks(3, "leave_after_a_poll", {.arguments = {how}});
    for (std::size_t const rank : {0U, 1U}) {
      auto const verdict = test::verdict_of(outcome.ranks.at(rank));
      EXPECT_EQ(verdict.code, "peer_lost") << how << "\n" << outcome.text();
      EXPECT_TRUE(verdict.blames_only(2)) << how << "\n" << outcome.text();
      EXPECT_THAT(verdict.text, Not(HasSubstr("root cause"))) << how << "\n" << outcome.text();
    }
  }
}

/// The writer finds that a reader has left, and dies before it has recorded that.
CROSSRANK_RANK_SCENARIO(die_while_judging) {
  return test::end_with_verdict(self, [&] {
    auto const world = connect(test::fault_options());
    auto queue = MessageQueue::create(world, {.chunks = 1});
    if (self.rank == 2) queue = {};
    world.barrier();
    if (self.rank == 0) {
      platform::arm_crash_point("node.queue.failing", 1);
      queue.enqueue(1);
    }
    if (self.rank == 1) static_cast<void>(queue.dequeue<int>());
    world.barrier();
  });
}

TEST(QueueVerdicts, survive_the_death_of_the_deciding_rank) {
  auto const outcome = test::run_ranks(3, "die_while_judging");
  EXPECT_EQ(outcome.ranks.at(0).signal, SIGKILL) << outcome.text();
  expect_verdicts(outcome, {1, 2}, "peer_lost", 0);
}

}  // namespace
}  // namespace crossrank::queue_verdict_test
