#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <crossrank/error.hpp>
#include <crossrank/message_queue.hpp>

#include "lib/platform/crash_point.hpp"
#include "tests/collectives/message_queue/sample_message.hpp"
#include "tests/support/timeouts.hpp"
#include "tests/support/process_ranks.hpp"

/// Queues between processes, and the state after one of them is killed.
namespace crossrank::test {
namespace {

Collective join() {
  return connect({.backend = "shm",
                  .timeout = step_timeout,
                  .job_id = std::getenv("CROSSRANK_JOB_ID"),
                  .arena_cap = std::uint64_t{64} << 20});
}

CROSSRANK_RANK_SCENARIO(queue_of_many_sizes) {
  auto world = join();
  auto const queue = MessageQueue::create(world, {.writer_rank = 1, .chunk_bytes = 4096, .chunks = 3});
  for (unsigned i = 0; i < 400; ++i) {
    auto const message = sample(i % 5 == 0 ? 50'000 : 37 * (i % 90), i);
    if (queue.is_writer()) {
      queue.enqueue_bytes(message);
    } else {
      EXPECT_EQ(queue.dequeue_bytes(), message) << i;
    }
  }
  queue.close();
  if (!queue.is_writer()) return 0;
  EXPECT_TRUE(queue.wait_for(step_timeout));
  return 0;
}

TEST(QueueProcesses, exchange_messages_of_many_sizes) {
  auto const job = run_ranks(3, "queue_of_many_sizes");
  EXPECT_TRUE(job.ok()) << job.text();
}

CROSSRANK_RANK_SCENARIO(queue_by_handle) {
  auto world = join();
  MessageQueue queue;
  Bytes handle;
  if (self.rank == 0) {
    queue = MessageQueue::create_writer(world, 1, {.chunk_bytes = 64});
    handle = queue.handle();
  }
  handle = world.all_gatherv(handle)[0];
  if (self.rank == 1) {
    queue = MessageQueue::attach(handle, 0);
    EXPECT_EQ(queue.dequeue_bytes(), sample(20, 1));
  } else {
    queue.enqueue_bytes(sample(20, 1));
  }
  queue.close();
  world.close();
  return 0;
}

TEST(QueueProcesses, find_their_job_from_the_handle_alone) {
  auto const job = run_ranks(2, "queue_by_handle");
  EXPECT_TRUE(job.ok()) << job.text();
}

CROSSRANK_RANK_SCENARIO(writer_blocked_by_a_reader) {
  auto world = join();
  auto const queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 2});
  if (self.rank == 2) {
    self.say("stuck");
    while (true) ::pause();
  }
  if (self.rank == 1) {
    try {
      while (queue.dequeue_bytes()) {
      }
      return 2;
    } catch (PeerLostError const& e) {
      EXPECT_THAT(e.info().failed_ranks, testing::ElementsAre(2)) << e.report();
    }
    return 0;
  }
  try {
    queue.enqueue_bytes(sample(8, 1));
    queue.enqueue_bytes(sample(8, 2));
    self.say("blocked");
    queue.enqueue_bytes(sample(8, 3));
    return 2;
  } catch (PeerLostError const& e) {
    EXPECT_THAT(e.info().failed_ranks, testing::ElementsAre(2)) << e.report();
    EXPECT_FALSE(e.group_usable()) << "a member of the group is dead";
    EXPECT_THAT(e.report(), testing::HasSubstr("died"));
    EXPECT_THAT(e.report(), testing::Not(testing::HasSubstr("make a new queue")));
  }
  queue.close();
  return 0;
}

TEST(QueueProcesses, report_a_killed_reader_to_a_blocked_writer) {
  ProcessRanks job(3, "writer_blocked_by_a_reader");
  ASSERT_TRUE(job.wait_for_line(2, "stuck", step_timeout));
  ASSERT_TRUE(job.wait_for_line(0, "blocked", step_timeout));
  job.signal(2, SIGKILL);
  auto const outcome = job.wait();
  EXPECT_TRUE(outcome.ranks[0].ok()) << outcome.text();
  EXPECT_TRUE(outcome.ranks[1].ok()) << outcome.text();
  EXPECT_TRUE(outcome.leaks.empty()) << outcome.text();
}

/// Arguments: crash point, visit at which the writer dies there, number of messages that the readers get.
CROSSRANK_RANK_SCENARIO(writer_dies_at_a_point) {
  auto world = join();
  auto const queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 8});
  if (queue.is_writer()) {
    platform::arm_crash_point(self.arguments.at(0), std::stoi(self.arguments.at(1)));
    for (unsigned i = 0; i < 8; ++i) queue.enqueue_bytes(sample(i == 2 ? 5000 : 40, i));
    return 2;
  }
  unsigned got = 0;
  try {
    while (auto const message = queue.dequeue_bytes()) {
      EXPECT_EQ(*message, sample(got == 2 ? 5000 : 40, got)) << got;
      ++got;
    }
    return 3;
  } catch (PeerLostError const& e) {
    EXPECT_THAT(e.info().failed_ranks, testing::ElementsAre(0)) << e.report();
  }
  EXPECT_EQ(got, static_cast<unsigned>(std::stoi(self.arguments.at(2))));
  return 0;
}

class WriterKilled : public testing::TestWithParam<std::tuple<char const*, int, int>> {};

TEST_P(WriterKilled, leaves_readers_all_complete_messages) {
  auto const& [point, visit, messages] = GetParam();
  auto const job =
      run_ranks(3, "writer_dies_at_a_point", {.arguments = {point, std::to_string(visit), std::to_string(messages)}});
  EXPECT_EQ(job.ranks[0].signal, SIGKILL) << job.text();
  EXPECT_TRUE(job.ranks[1].ok() && job.ranks[2].ok()) << job.text();
  EXPECT_TRUE(job.leaks.empty()) << job.text();
}

INSTANTIATE_TEST_SUITE_P(Queue, WriterKilled,
                         testing::Values(std::tuple("node.queue.written", 1, 0), std::tuple("node.queue.written", 3, 2),
                                         std::tuple("node.queue.published", 3, 3)));

CROSSRANK_RANK_SCENARIO(queue_in_a_forked_child) {
  auto world = join();
  auto const queue = MessageQueue::create(world, {.chunk_bytes = 64});
  auto const child = ::fork();
  if (child == 0) {
    try {
      queue.is_writer() ? queue.enqueue_bytes({}) : static_cast<void>(queue.dequeue_bytes());
    } catch (UsageError const&) {
      ::_exit(7);
    } catch (...) {
    }
    ::_exit(8);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  world.barrier();
  if (queue.is_writer()) {
    queue.enqueue_bytes(sample(3, 3));
  } else {
    EXPECT_EQ(queue.dequeue_bytes(), sample(3, 3));
  }
  world.close();
  return 0;
}

TEST(QueueProcesses, are_not_disturbed_by_forked_children) {
  auto const job = run_ranks(2, "queue_in_a_forked_child");
  EXPECT_TRUE(job.ok()) << job.text();
}

}  // namespace
}  // namespace crossrank::test
