#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/message_queue.hpp>

#include "lib/core/as_size.hpp"
#include "lib/platform/system.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/thread_ranks.hpp"

/// The ranks that the timeouts of a queue blame. If two endpoints time out at nearly the same time, both blame the same
/// rank: there each rank has a clock that the test moves, so that the order of the timeouts does not depend on the
/// machine.
namespace crossrank::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// The limit of calls that are to time out. One step of a clock covers it.
constexpr auto tie_limit = std::chrono::milliseconds(150);
/// The timeout of the group. `tie_limit` is not much shorter, so a call that times out is no poll.
constexpr auto group_timeout = 3 * tie_limit;

/// A clock for each rank that moves only when the test moves it.
class RankClocks final : public platform::System {
 public:
  /// The calling thread is this rank from now on.
  void take(int rank) noexcept { own_ = &clocks_.at(as_size(rank)); }
  /// The calling rank is about to make a call that `await_sleep` waits for.
  void before_call() noexcept { own_->phase = Phase::calls; }
  /// Waits until a rank sleeps in the call that it has announced.
  void await_sleep(int rank) const noexcept {
    while (clocks_.at(as_size(rank)).phase != Phase::sleeps) std::this_thread::yield();
  }
  /// Lets the deadlines of a rank's calls pass.
  void pass(int rank) noexcept { clocks_.at(as_size(rank)).moved += std::chrono::nanoseconds(tie_limit).count(); }

  std::chrono::nanoseconds now() override {
    return std::chrono::nanoseconds(base_ + (own_ == nullptr ? 0 : own_->moved.load()));
  }
  int futex_wait(std::uint32_t const* word, std::uint32_t expected, std::chrono::nanoseconds limit) override {
    auto calls = Phase::calls;
    if (own_ != nullptr) own_->phase.compare_exchange_strong(calls, Phase::sleeps);
    return System::futex_wait(word, expected, limit);
  }

 private:
  enum class Phase { idle, calls, sleeps };
  struct Clock {
    std::atomic<Phase> phase{Phase::idle};
    std::atomic<std::int64_t> moved{0};
  };

  static thread_local Clock* own_;
  std::int64_t base_ = platform::System::now().count();
  std::array<Clock, 4> clocks_{};
};

thread_local RankClocks::Clock* RankClocks::own_ = nullptr;

/// Points of a test that ranks wait for. Unlike barriers they leave the ranks' clocks alone.
class Steps {
 public:
  void reach(int step) noexcept { reached_ = step; }
  void await(int step) const noexcept {
    while (reached_ < step) std::this_thread::yield();
  }

 private:
  std::atomic<int> reached_{0};
};

class QueueTie : public testing::Test {
 protected:
  /// Runs ranks whose queue has `chunks` messages. All readers but rank 2 have taken all of them.
  void run(int ranks, std::uint64_t chunks, std::function<void(Collective const&, MessageQueue&)> const& body) {
    platform::ScopedSystem const installed(clocks_);
    run_thread_ranks(ranks,
                     [&](Collective world) {
                       clocks_.take(world.rank());
                       auto queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = chunks});
                       for (std::uint64_t i = 0; i < chunks; ++i) {
                         if (queue.is_writer()) {
                           queue.enqueue(1);
                         } else if (world.rank() != 2) {
                           EXPECT_EQ(queue.dequeue<int>(), 1);
                         }
                       }
                       world.barrier();
                       body(world, queue);
                       world.barrier();
                       world.close();
                     },
                     {.timeout = group_timeout});
  }

  ErrorInfo enqueue_in_vain(MessageQueue const& queue) {
    clocks_.before_call();
    return error_of<TimeoutError>([&] { queue.enqueue(2, {.timeout = tie_limit}); });
  }
  ErrorInfo dequeue_in_vain(MessageQueue const& queue) {
    clocks_.before_call();
    return error_of<TimeoutError>([&] { static_cast<void>(queue.dequeue<int>({.timeout = tie_limit})); });
  }

  RankClocks clocks_;
  Steps steps_;
};

TEST_F(QueueTie, makes_a_reader_follow_the_writer_although_the_slow_reader_has_gone_on) {
  run(3, 2, [&](Collective const& world, MessageQueue& queue) {
    if (world.rank() == 0) {
      clocks_.await_sleep(1);
      EXPECT_THAT(enqueue_in_vain(queue).failed_ranks, ElementsAre(2));
      steps_.reach(1);
    }
    if (world.rank() == 1) {
      auto const info = dequeue_in_vain(queue);
      EXPECT_THAT(info.failed_ranks, ElementsAre(2));
      EXPECT_THAT(info.message, HasSubstr("another endpoint of the queue timed out first, waiting for rank 2"));
    }
    if (world.rank() == 2) {
      clocks_.await_sleep(0);
      clocks_.pass(0);
      steps_.await(1);
      EXPECT_EQ(queue.dequeue<int>(), 1);
      EXPECT_EQ(queue.dequeue<int>(), 1);
      clocks_.pass(1);
    }
    world.barrier();
    // The verdict ends when the writer continues. It must not wait in a barrier meanwhile: then the poll blames the
    // rank that the barrier waits for.
    if (queue.is_writer()) {
      queue.enqueue(3);
      steps_.await(2);
    }
    if (world.rank() == 1) {
      EXPECT_EQ(queue.dequeue<int>(), 3);
      EXPECT_THAT(error_of<TimeoutError>([&] {
                    static_cast<void>(queue.dequeue<int>({.timeout = std::chrono::nanoseconds(0)}));
                  }).failed_ranks,
                  ElementsAre(0));
      steps_.reach(2);
    }
  });
}

TEST_F(QueueTie, makes_all_endpoints_follow_the_first_reader_although_the_writer_waits_since) {
  run(4, 1, [&](Collective const& world, MessageQueue& queue) {
    if (world.rank() == 0) {
      steps_.await(1);
      EXPECT_THAT(enqueue_in_vain(queue).failed_ranks, ElementsAre(0)) << "its first reader has left";
    }
    if (world.rank() == 1) {
      EXPECT_THAT(dequeue_in_vain(queue).failed_ranks, ElementsAre(0));
      steps_.reach(1);
      steps_.await(2);
      queue = {};
    }
    if (world.rank() == 2) {
      clocks_.await_sleep(1);
      clocks_.await_sleep(3);
      clocks_.pass(1);
      clocks_.await_sleep(0);
      clocks_.pass(3);
    }
    if (world.rank() == 3) {
      EXPECT_THAT(dequeue_in_vain(queue).failed_ranks, ElementsAre(0));
      steps_.reach(2);
    }
  });
}

TEST_F(QueueTie, is_not_decided_by_a_poll) {
  run(4, 1, [&](Collective const& world, MessageQueue& queue) {
    if (world.rank() == 0) {
      steps_.await(1);
      EXPECT_THAT(enqueue_in_vain(queue).failed_ranks, ElementsAre(2));
    }
    if (world.rank() == 1) {
      clocks_.await_sleep(3);
      auto const poll = error_of<TimeoutError>(
          [&] { static_cast<void>(queue.dequeue<int>({.timeout = std::chrono::nanoseconds(0)})); });
      EXPECT_THAT(poll.failed_ranks, ElementsAre(0));
      steps_.reach(1);
      clocks_.await_sleep(0);
      clocks_.pass(3);
    }
    if (world.rank() == 3) {
      EXPECT_THAT(dequeue_in_vain(queue).failed_ranks, ElementsAre(2));
      clocks_.pass(0);
    }
  });
}

TEST_F(QueueTie, is_not_decided_by_a_timeout_from_before_the_wait) {
  run(2, 1, [&](Collective const& world, MessageQueue& queue) {
    if (world.rank() == 0) {
      clocks_.await_sleep(1);
      clocks_.pass(1);
      steps_.await(1);
      queue.enqueue(2);
      EXPECT_THAT(enqueue_in_vain(queue).failed_ranks, ElementsAre(1)) << "it has not taken a message since";
    } else {
      EXPECT_THAT(dequeue_in_vain(queue).failed_ranks, ElementsAre(0));
      steps_.reach(1);
      clocks_.await_sleep(0);
      clocks_.pass(0);
    }
  });
}

/// Repeats `call`, which times out, until its error no longer blames `direct` alone: that rank now waits as well.
ErrorInfo timeout_beyond(int direct, std::function<void()> const& call) {
  auto info = error_of<TimeoutError>(call);
  while (info.failed_ranks == std::vector<int>{direct}) info = error_of<TimeoutError>(call);
  return info;
}

constexpr auto short_limit = std::chrono::milliseconds(50);

/// Rank 0 writes to rank 1, which writes to rank 2. The last two have a queue of their own, so rank 2 has no number in
/// the group of the first queue.
TEST(QueueOutsider, is_named_by_its_rank_in_the_job_at_the_end_of_a_chain) {
  Steps steps;
  run_thread_ranks(3, [&](Collective const& world) {
    auto const first = world.split({{0, 1}, {2}});
    auto const second = world.split({{0}, {1, 2}});
    auto const from = world.rank() < 2 ? MessageQueue::create(first, {.chunks = 1}) : MessageQueue();
    auto const into = world.rank() > 0 ? MessageQueue::create(second, {.chunks = 1}) : MessageQueue();
    if (world.rank() == 0) {
      from.enqueue(1);
      auto const info = timeout_beyond(1, [&] { from.enqueue(2, {.timeout = short_limit}); });
      EXPECT_THAT(info.failed_ranks, testing::IsEmpty());
      EXPECT_THAT(info.message, HasSubstr("rank 1 took no message for 50 ms, waiting for rank 2 of the job"));
      steps.reach(1);
    } else if (world.rank() == 1) {
      into.enqueue(1);
      into.enqueue(2);
    } else {
      steps.await(1);
      EXPECT_EQ(into.dequeue<int>(), 1);
    }
    world.barrier();
  });
}

/// The writer waits in a barrier for a rank that has no endpoint of the queue.
TEST(QueueOutsider, is_blamed_for_what_it_does_outside_the_queue) {
  Steps steps;
  run_thread_ranks(
      3,
      [&](Collective const& world) {
        auto const pair = world.split({{0, 1}, {2}});
        auto queue = world.rank() < 2 ? MessageQueue::create(pair, {.chunks = 1}) : MessageQueue();
        if (world.rank() == 1) {
          auto const info = timeout_beyond(0, [&] { static_cast<void>(queue.dequeue<int>({.timeout = short_limit})); });
          EXPECT_THAT(info.failed_ranks, testing::IsEmpty());
          EXPECT_THAT(info.message, HasSubstr("the writer, rank 0, waits for rank 2 of the job"));
          // Not a poll, so it becomes the reason why the queue fails.
          error_of<TimeoutError>([&] { static_cast<void>(queue.dequeue<int>({.timeout = std::chrono::seconds(4)})); });
          queue = {};
          steps.reach(1);
        }
        if (world.rank() == 2) steps.await(1);
        world.barrier();
        if (world.rank() == 0) {
          EXPECT_THAT(error_of<TimeoutError>([&] { queue.enqueue(1); }).message,
                      HasSubstr("rank 2 of the job held up the queue for too long, so another rank left the queue"));
        }
      },
      {.timeout = std::chrono::seconds(16)});
}

/// Readers 1 and 12 have similar names. Reader 12 takes nothing, because it waits for rank 1 in a barrier.
TEST(QueueTimeout, names_the_rank_that_a_slow_reader_waits_for_although_its_name_is_similar) {
  Steps steps;
  run_thread_ranks(13, [&](Collective const& world) {
    auto const pair = world.split({{1, 12}});
    auto queue = MessageQueue::create(world, {.chunks = 1});
    if (world.rank() == 0) {
      queue.enqueue(1);
      auto const info = timeout_beyond(12, [&] { queue.enqueue(2, {.timeout = short_limit}); });
      EXPECT_THAT(info.failed_ranks, ElementsAre(1));
      EXPECT_THAT(info.message, HasSubstr("rank 12 took no message for 50 ms, waiting for rank 1"));
      steps.reach(1);
    } else if (world.rank() != 12) {
      EXPECT_EQ(queue.dequeue<int>(), 1);
      if (world.rank() == 1) steps.await(1);
    }
    if (pair.connected()) pair.barrier();
    queue.close();
    world.barrier();
  });
}

}  // namespace
}  // namespace crossrank::test
