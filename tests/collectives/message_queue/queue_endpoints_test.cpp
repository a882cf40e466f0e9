#include <array>
#include <atomic>
#include <chrono>
#include <span>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/message_queue.hpp>
#include <crossrank/statistics.hpp>

#include "lib/core/as_size.hpp"
#include "tests/support/await_sleeper.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/support/timeouts.hpp"

/// How the two endpoints of a queue are kept apart.
namespace crossrank::test::queue_endpoints_test {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Bytes const message(24, std::byte{3});

/// Also a message that is longer than a chunk, and one without any bytes.
TEST(QueueEndpoint, joins_the_parts_of_a_message) {
  run_thread_ranks(2, [](Collective const& world) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 2});
    Bytes const first(10, std::byte{1});
    for (std::size_t const length : {20U, 5'000U}) {
      Bytes const last(length, std::byte{2});
      Bytes whole = first;
      whole.insert(whole.end(), last.begin(), last.end());
      if (queue.is_writer()) {
        std::array<std::span<std::byte const>, 3> const parts{first, {}, last};
        queue.enqueue_parts(parts);
      } else {
        EXPECT_EQ(queue.dequeue_bytes(), whole);
      }
    }
    if (queue.is_writer()) {
      queue.enqueue_parts({});
    } else {
      EXPECT_EQ(queue.dequeue_bytes(), Bytes());
      EXPECT_EQ(error_of<UsageError>([&] { queue.enqueue_parts({}); }).operation, "enqueue");
    }
  });
}

TEST(QueueEndpoint, is_not_lost_when_a_reader_drops_its_handle_after_the_last_message) {
  run_thread_ranks(3, [](Collective world) {
    auto queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 4});
    if (queue.is_writer()) {
      queue.enqueue_bytes(message);
      queue.close();
    }
    if (world.rank() == 1) {
      EXPECT_EQ(queue.dequeue_bytes(), message);
      EXPECT_EQ(queue.dequeue_bytes(), std::nullopt);
      queue = {};
    }
    world.barrier();
    if (world.rank() == 0) {
      EXPECT_FALSE(queue.wait_for(milliseconds(5))) << "rank 2 has read no message";
    }
    world.barrier();
    if (world.rank() == 2) {
      EXPECT_EQ(queue.dequeue_bytes(), message);
    }
    if (world.rank() == 0) {
      EXPECT_TRUE(queue.wait_for(step_timeout));
    }
    world.barrier();
    world.close();
  });
}

TEST(QueueUse, refuses_a_second_thread_and_the_wrong_endpoint) {
  std::atomic<bool> is_over{false};
  run_thread_ranks(2, [&](Collective world) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 64});
    if (queue.is_writer()) {
      EXPECT_THROW(static_cast<void>(queue.dequeue_bytes()), UsageError);
      // The only thread that sleeps in the library must be the reader.
      is_over.wait(false);
    } else {
      EXPECT_THROW(queue.enqueue_bytes(message), UsageError);
      auto const before = statistics().futex_waits;
      std::thread second([&, same = queue] {
        await_sleeper(before);
        EXPECT_THROW(static_cast<void>(same.dequeue_bytes()), UsageError);
        same.cancel();
      });
      EXPECT_THROW(static_cast<void>(queue.dequeue_bytes({.timeout = step_timeout})), CancelledError);
      second.join();
      is_over = true;
      is_over.notify_one();
    }
    world.barrier();
    world.close();
  });
}

TEST(QueueUse, refuses_different_options) {
  run_thread_ranks(2, [](Collective world) {
    EXPECT_THROW(
        static_cast<void>(MessageQueue::create(world, {.chunk_bytes = 64, .chunks = as_size(world.rank()) + 1})),
        MismatchError);
    EXPECT_THROW(static_cast<void>(MessageQueue::create(world, {.writer_rank = 2})), UsageError);
    EXPECT_THROW(static_cast<void>(MessageQueue::create(world, {.chunks = 0})), UsageError);
    world.barrier();
    world.close();
  });
}

TEST(QueueMemory, is_reported_to_all_ranks_when_missing) {
  run_thread_ranks(2, [](Collective world) {
    QueueOptions const huge{.chunk_bytes = std::size_t{8} << 20, .chunks = 16};
    EXPECT_THAT(error_of<UnavailableError>([&] { static_cast<void>(MessageQueue::create(world, huge)); }).resource,
                world.rank() == 0 ? HasSubstr("arena of rank 0") : HasSubstr("queue"));
    QueueOptions const impossible{.chunk_bytes = ~std::size_t{0} - 4, .chunks = 1U << 31};
    EXPECT_THROW(static_cast<void>(MessageQueue::create(world, impossible)), Error);
    world.barrier();
    world.close();
  });
}

TEST(QueuePeer, is_reported_as_lost_when_it_drops_its_handle) {
  run_thread_ranks(3, [](Collective world) {
    auto queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 1});
    if (world.rank() == 1) queue = {};
    if (queue.connected() && queue.is_writer()) {
      world.barrier();
      auto const info = error_of<PeerLostError>([&] { queue.enqueue_bytes(message); });
      EXPECT_THAT(info.failed_ranks, ElementsAre(1));
      EXPECT_TRUE(info.group_usable);
      EXPECT_THROW(queue.enqueue_bytes(message), PeerLostError) << "forgotten";
      queue = {};
    } else {
      world.barrier();
    }
    if (world.rank() == 2) {
      EXPECT_THAT(error_of<PeerLostError>([&] { static_cast<void>(queue.dequeue_bytes()); }).failed_ranks,
                  ElementsAre(1))
          << "the writer left because of rank 1";
    }
    world.barrier();
    world.close();
  });
}

TEST(QueuePeer, is_not_waited_for_after_it_closes) {
  run_thread_ranks(3, [](Collective world) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 1});
    if (world.rank() == 1) {
      queue.close();
      EXPECT_THROW(static_cast<void>(queue.dequeue_bytes()), UsageError);
    }
    for (int i = 0; i < 5; ++i) {
      if (queue.is_writer()) {
        queue.enqueue_bytes(message);
      }
      if (world.rank() == 2) {
        EXPECT_EQ(queue.dequeue_bytes(), message);
      }
    }
    if (world.rank() == 2) queue.close();
    world.barrier();
    if (queue.is_writer()) {
      EXPECT_THROW(queue.enqueue_bytes(message), PeerLostError) << "no reader is left";
    }
    world.barrier();
    world.close();
  });
}

}  // namespace
}  // namespace crossrank::test::queue_endpoints_test
