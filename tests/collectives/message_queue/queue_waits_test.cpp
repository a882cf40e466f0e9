#include <atomic>
#include <chrono>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/log.hpp>
#include <crossrank/message_queue.hpp>
#include <crossrank/statistics.hpp>

#include "tests/support/await_sleeper.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/support/timeouts.hpp"

/// How waits for a queue end.
namespace crossrank::test::queue_waits_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Bytes const message(24, std::byte{3});

void expect_one_message_passes(MessageQueue const& queue) {
  if (queue.is_writer()) {
    queue.enqueue_bytes(message);
  } else {
    EXPECT_EQ(queue.dequeue_bytes(), message);
  }
}

TEST(QueueTimeout, names_the_slow_reader_and_keeps_the_queue_usable) {
  run_thread_ranks(3, [](Collective world) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 2, .name = "commands"});
    if (queue.is_writer()) {
      queue.enqueue_bytes(message);
      queue.enqueue_bytes(message);
    }
    if (world.rank() == 1) {
      EXPECT_EQ(queue.dequeue_bytes(), message);
      EXPECT_EQ(queue.dequeue_bytes(), message);
    }
    world.barrier();
    if (queue.is_writer()) {
      auto const info = error_of<TimeoutError>([&] { queue.enqueue_bytes(message, {.timeout = milliseconds(30)}); });
      EXPECT_THAT(info.failed_ranks, ElementsAre(2));
      EXPECT_TRUE(info.group_usable);
      EXPECT_THAT(info.resource, HasSubstr("commands"));
      EXPECT_THAT(info.details, Contains(HasSubstr("has taken 0 of 2 messages")));
    }
    world.barrier();  // group and queue stay usable
    if (world.rank() == 2) {
      EXPECT_EQ(queue.dequeue_bytes(), message);
      EXPECT_EQ(queue.dequeue_bytes(), message);
    }
    world.barrier();
    expect_one_message_passes(queue);
    world.close();
  });
}

/// The arena holds two of the large messages. The writer then waits for the reader that has taken none of them.
TEST(QueueTimeout, names_the_reader_whose_messages_fill_the_memory) {
  ThreadRankOptions options;
  options.arena_cap = std::uint64_t{8} << 20;
  std::atomic<bool> is_full{false};
  run_thread_ranks(
      3,
      [&](Collective world) {
        auto const queue = MessageQueue::create(world, {.chunk_bytes = 4096, .chunks = 16});
        if (queue.is_writer()) {
          Bytes const large(std::size_t{3} << 20, std::byte{1});
          ErrorInfo info;
          do {  // until rank 1 has taken all messages
            info = error_of<TimeoutError>([&] {
              for (;;) queue.enqueue_bytes(large, {.timeout = milliseconds(50)});
            });
          } while (info.failed_ranks != std::vector<int>{2});
          EXPECT_THAT(info.message, HasSubstr("rank 2 took no message"));
          EXPECT_EQ(info.expected, "message 1 taken");
          is_full = true;
          queue.enqueue_bytes(Bytes(std::size_t{64} << 10), {.timeout = milliseconds(50)});  // has memory
          queue.close();
        } else {
          while (world.rank() == 1 && !is_full) {
            try {
              static_cast<void>(queue.dequeue_bytes({.timeout = milliseconds(1)}));
            } catch (TimeoutError const&) {  // the writer waits for rank 2
            }
          }
          while (!is_full) std::this_thread::sleep_for(milliseconds(1));
          while (queue.dequeue_bytes()) continue;
        }
        world.barrier();
        world.close();
      },
      options);
}

/// No endpoint can list all slow readers, so all list the same ones and count the others.
TEST(QueueTimeout, counts_the_slow_readers_that_it_does_not_list) {
  std::atomic<bool> writer_knows{false};
  std::atomic<bool> is_over{false};
  run_thread_ranks(21, [&](Collective world) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 1});
    std::vector<int> listed;
    for (int rank = 2; rank < 18; ++rank) listed.push_back(rank);
    if (queue.is_writer()) {
      queue.enqueue_bytes(message);
      ErrorInfo info;
      do {  // until rank 1 has taken the message
        info = error_of<TimeoutError>([&] { queue.enqueue_bytes(message, {.timeout = milliseconds(30)}); });
      } while (info.failed_ranks.size() > 1 && info.failed_ranks.front() == 1);
      writer_knows = true;
      EXPECT_EQ(info.failed_ranks, listed);
      EXPECT_THAT(info.message, HasSubstr("ranks 2-20 took no message"));
      queue.enqueue_bytes(message);
    } else {
      if (world.rank() == 1) {
        EXPECT_EQ(queue.dequeue_bytes(), message);
        while (!writer_knows) std::this_thread::sleep_for(milliseconds(1));
        ErrorInfo info;
        do {  // until the writer waits, the error blames the writer
          info = error_of<TimeoutError>([&] { static_cast<void>(queue.dequeue_bytes({.timeout = milliseconds(30)})); });
        } while (info.failed_ranks == std::vector<int>{0});
        EXPECT_EQ(info.failed_ranks, listed);
        EXPECT_THAT(info.message, HasSubstr("waits for ranks 2-17 and 3 more"));
        is_over = true;
      }
      while (!is_over) std::this_thread::sleep_for(milliseconds(1));
      if (world.rank() != 1) {
        EXPECT_EQ(queue.dequeue_bytes(), message);
      }
      EXPECT_EQ(queue.dequeue_bytes(), message);
    }
    world.barrier();
    world.close();
  });
}

/// A reader that times out names the rank that the writer waits for. When that reader leaves, the writer names the same
/// rank.
TEST(QueueTimeout, blames_the_same_rank_at_all_endpoints) {
  run_thread_ranks(
      3,
      [](Collective world) {
        auto queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 2});
        if (queue.is_writer()) {
          queue.enqueue_bytes(message);
          queue.enqueue_bytes(message);
          auto const info = error_of<TimeoutError>([&] { queue.enqueue_bytes(message, {.timeout = step_timeout}); });
          EXPECT_THAT(info.failed_ranks, ElementsAre(2));
          EXPECT_TRUE(info.group_usable) << "no rank has ended";
          EXPECT_THROW(queue.enqueue_bytes(message), TimeoutError) << "forgotten";
        }
        if (world.rank() == 1) {
          EXPECT_EQ(queue.dequeue_bytes(), message);
          EXPECT_EQ(queue.dequeue_bytes(), message);
          ErrorInfo info;
          do {  // until the writer waits, the error blames the writer
            info =
                error_of<TimeoutError>([&] { static_cast<void>(queue.dequeue_bytes({.timeout = milliseconds(30)})); });
          } while (info.failed_ranks == std::vector<int>{0});
          EXPECT_THAT(info.failed_ranks, ElementsAre(2));
          // Those were polls. A longer wait that times out is the reason why the queue fails.
          info = error_of<TimeoutError>([&] { static_cast<void>(queue.dequeue_bytes({.timeout = seconds(4)})); });
          EXPECT_THAT(info.failed_ranks, ElementsAre(2));
          queue = {};
        }
        world.barrier();
        if (world.rank() == 2) {
          EXPECT_EQ(queue.dequeue_bytes(), message) << "earlier messages must still be readable";
          EXPECT_EQ(queue.dequeue_bytes(), message);
          EXPECT_THAT(error_of<TimeoutError>([&] { static_cast<void>(queue.dequeue_bytes()); }).failed_ranks,
                      ElementsAre(2));
        }
        world.barrier();
        world.close();
      },
      {.timeout = seconds(16)});
}

TEST(QueueTimeout, ends_the_wait_of_a_reader_without_messages) {
  run_thread_ranks(2, [](Collective world) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 64});
    if (!queue.is_writer()) {
      auto const info =
          error_of<TimeoutError>([&] { static_cast<void>(queue.dequeue_bytes({.timeout = milliseconds(10)})); });
      EXPECT_THAT(info.failed_ranks, ElementsAre(0));
      EXPECT_TRUE(info.group_usable);
      EXPECT_FALSE(queue.wait_for(milliseconds(0)));
      EXPECT_THROW(static_cast<void>(queue.dequeue_bytes({.timeout = milliseconds(0)})), TimeoutError);
    }
    world.barrier();
    if (queue.is_writer()) {
      queue.enqueue_bytes(message);
    } else {
      EXPECT_TRUE(queue.wait_for(step_timeout));
      EXPECT_EQ(queue.dequeue_bytes({.timeout = milliseconds(0)}), message);
    }
    world.close();
  });
}

/// With `busy`, the reader still spins, for as long as it can. Otherwise it already sleeps.
void cancel_a_reader(bool busy) {
  run_thread_ranks(2, [busy](Collective world) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 64});
    if (!queue.is_writer()) {
      EXPECT_THROW(static_cast<void>(queue.dequeue_bytes({.timeout = milliseconds(10)})), TimeoutError);
      auto const before = statistics().futex_waits;
      std::thread canceller([&] {
        if (!busy) await_sleeper(before);
        queue.cancel();
      });
      EXPECT_THROW(static_cast<void>(queue.dequeue_bytes({.timeout = step_timeout})), CancelledError);
      canceller.join();
      EXPECT_THROW(static_cast<void>(queue.dequeue_bytes()), CancelledError) << "a cancelled queue stays cancelled";
    }
    world.barrier();
    world.close();
  });
}

TEST(QueueCancel, ends_the_wait_of_a_busy_reader) { cancel_a_reader(true); }
TEST(QueueCancel, ends_the_wait_of_an_idle_reader) { cancel_a_reader(false); }

TEST(QueueCancel, ends_the_wait_of_a_writer_and_leaves_the_group_usable) {
  run_thread_ranks(2, [](Collective world) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 1});
    if (queue.is_writer()) {
      queue.enqueue_bytes(message);
      auto const before = statistics().futex_waits;
      std::thread canceller([&] {
        await_sleeper(before);
        queue.cancel();
      });
      EXPECT_TRUE(
          error_of<CancelledError>([&] { queue.enqueue_bytes(message, {.timeout = step_timeout}); }).group_usable);
      canceller.join();
    }
    world.barrier();
    world.close();
  });
}

TEST(QueueCancel, works_by_a_stop_token_for_one_call_only) {
  run_thread_ranks(2, [](Collective world) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 64});
    if (!queue.is_writer()) {
      std::stop_source stop;
      auto const before = statistics().futex_waits;
      std::thread stopper([&] {
        await_sleeper(before);
        stop.request_stop();
      });
      EXPECT_THROW(static_cast<void>(queue.dequeue_bytes({.timeout = step_timeout, .stop = stop.get_token()})),
                   CancelledError);
      stopper.join();
    }
    world.barrier();
    expect_one_message_passes(queue);
    world.close();
  });
}

/// The writer and the reader change from idle to busy and back. A sleeper also wakes by itself after a while, so only
/// the count of wake-ups shows whether it was woken. Time would show nothing on a busy machine.
TEST(QueueWake, reaches_a_sleeping_reader_and_a_sleeping_writer) {
  constexpr int trials = 9;
  std::atomic<int> reader_wakes{0};
  std::atomic<int> writer_wakes{0};
  run_thread_ranks(2, [&](Collective world) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 1});
    auto const act = [&] {
      if (queue.is_writer()) {
        queue.enqueue_bytes(message);
      } else {
        EXPECT_EQ(queue.dequeue_bytes(), message);
      }
    };
    for (int trial = 0; trial < trials; ++trial) {
      bool const reader_sleeps = trial % 2 == 0;
      if (!reader_sleeps && queue.is_writer()) queue.enqueue_bytes(message);
      auto const before = statistics().futex_waits;
      world.barrier();
      if (queue.is_writer() == reader_sleeps) {
        await_sleeper(before);
        auto const wakes_before = statistics().futex_wakes;
        act();
        if (statistics().futex_wakes > wakes_before) ++(reader_sleeps ? reader_wakes : writer_wakes);
      } else {
        act();
      }
      if (!reader_sleeps && !queue.is_writer()) act();
      world.barrier();
    }
    world.close();
  });
  // Between two slices of sleep a rank may be awake and need no wake-up, hence only a lower bound.
  EXPECT_GT(reader_wakes.load(), 0);
  EXPECT_GT(writer_wakes.load(), 0);
}

TEST(QueueIdle, readers_sleep) {
  run_thread_ranks(3, [](Collective world) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 64});
    if (!queue.is_writer()) {
      timespec before{};
      timespec after{};
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
      EXPECT_THROW(static_cast<void>(queue.dequeue_bytes({.timeout = milliseconds(500)})), TimeoutError);
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
      auto const used =
          seconds(after.tv_sec - before.tv_sec) + std::chrono::nanoseconds(after.tv_nsec - before.tv_nsec);
      EXPECT_LT(used, milliseconds(100)) << "the reader must sleep for most of half a second";
    }
    world.barrier();
    world.close();
  });
}

TEST(QueueWarning, names_the_awaited_rank_unless_the_wait_has_no_limit) {
  static std::atomic<int> warnings{0};
  set_log_sink([](LogEvent const& event) {
    if (event.message.find("a queue waits") != std::string_view::npos) ++warnings;
  });
  run_thread_ranks(2, [](Collective world) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 64, .name = "slow", .warn_every = milliseconds(1)});
    if (!queue.is_writer()) {
      EXPECT_THROW(static_cast<void>(queue.dequeue_bytes({.timeout = milliseconds(300)})), TimeoutError);
      EXPECT_GT(warnings.load(), 0);
      warnings = 0;
      std::stop_source stop;
      std::thread stopper([&] {
        std::this_thread::sleep_for(milliseconds(250));  // no warning may come during this time
        stop.request_stop();
      });
      EXPECT_THROW(static_cast<void>(queue.dequeue_bytes({.timeout = QueueWait::forever, .stop = stop.get_token()})),
                   CancelledError);
      stopper.join();
      EXPECT_EQ(warnings.load(), 0);
    }
    world.barrier();
    world.close();
  });
  set_log_sink({});
}

}  // namespace
}  // namespace crossrank::test::queue_waits_test
