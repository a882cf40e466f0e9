#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/crossrank.hpp>

#include "collectives/message_queue/proportional_backoff.hpp"
#include "collectives/message_queue/remote_link.hpp"
#include "lib/node/group/group.hpp"
#include "lib/node/queue/ring_reader.hpp"
#include "lib/node/queue/ring_writer.hpp"
#include "tests/collectives/message_queue/sample_message.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/message_ranks.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/support/timeouts.hpp"

/// Queues with some or all readers on other nodes than the writer.
namespace crossrank::test::queue_remote_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class RemoteQueue : public testing::TestWithParam<bool> {
 protected:
  static void run(int ranks, MessageBody const& body, std::chrono::milliseconds timeout = step_timeout) {
    run_message_ranks(ranks, body, {.timeout = timeout, .node_memory = GetParam()});
  }
};

TEST_P(RemoteQueue, gives_every_reader_every_message_in_order) {
  run(4, [](Collective const& world, MemoryHub&) {
    auto const queue = MessageQueue::create(world, {.writer_rank = 1, .chunk_bytes = 256, .chunks = 3});
    std::vector<std::size_t> const sizes{0, 1, 40, 41, 255, 256, 257, 5000, 70'000};
    for (unsigned i = 0; i < 90; ++i) {
      auto const message = sample(sizes[i % sizes.size()], i);
      if (queue.is_writer()) {
        queue.enqueue_bytes(message);
      } else {
        ASSERT_EQ(queue.dequeue_bytes(), message) << "message " << i;
      }
    }
    EXPECT_EQ(queue.messages(), 90U);
    if (queue.is_writer()) {
      queue.close();
      EXPECT_TRUE(queue.wait_for(step_timeout));
    } else {
      EXPECT_EQ(queue.dequeue_bytes(), std::nullopt);
      EXPECT_EQ(queue.dequeue_bytes(), std::nullopt) << "the queue must stay at its end";
    }
  });
}

TEST_P(RemoteQueue, carries_messages_of_several_pieces_and_objects) {
  run(2, [](Collective const& world, MemoryHub&) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 4096, .chunks = 2});
    auto const large = sample((std::size_t{33} << 20) + 5, 3);
    std::vector<float> values(4000);
    std::iota(values.begin(), values.end(), 0.5F);
    if (queue.is_writer()) {
      queue.enqueue_bytes(large);
      queue.enqueue(std::string("text"));
      queue.enqueue(TensorDict{{"weight", Tensor::of<float>(values, {40, 100})}, {"step", 4}});
      queue.enqueue(Tensor::scalar<std::int64_t>(42));
      queue.close();
    } else {
      EXPECT_EQ(queue.dequeue_bytes(), large);
      EXPECT_EQ(queue.dequeue<std::string>(), "text");
      auto const dict = queue.dequeue<TensorDict>();
      auto scalar = queue.dequeue<Tensor>();
      ASSERT_TRUE(dict && scalar);
      EXPECT_THAT(dict->tensor("weight").as<float>(), testing::ElementsAreArray(values));
      EXPECT_EQ(dict->get<int>("step"), 4);
      EXPECT_EQ(scalar->item<std::int64_t>(), 42);
      EXPECT_EQ(queue.dequeue<Tensor>(), std::nullopt);
    }
  });
}

/// No message is dropped, however far behind a reader is. The writer waits, and its timeout names the reader.
TEST_P(RemoteQueue, makes_the_writer_wait_for_a_slow_reader) {
  run(3, [](Collective const& world, MemoryHub&) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 2});
    constexpr int count = 1200;
    if (queue.is_writer()) {
      queue.enqueue(0);
      queue.enqueue(1);
      auto const error = thrown<TimeoutError>([&] { queue.enqueue(2, {.timeout = milliseconds(50)}); });
      EXPECT_THAT(error.failed_ranks(), testing::ElementsAre(1, 2));
      EXPECT_TRUE(error.group_usable());
      EXPECT_THAT(error.what(), testing::HasSubstr("ranks 1-2"));
      world.barrier();
      for (int i = 2; i < count; ++i) queue.enqueue(i);
      queue.close();
    } else {
      world.barrier();
      for (int i = 0; i < count; ++i) {
        if (world.rank() == 1 && i % 100 == 0) std::this_thread::yield();
        ASSERT_EQ(queue.dequeue<int>(), i);
      }
      EXPECT_EQ(queue.dequeue<int>(), std::nullopt);
    }
  });
}

TEST_P(RemoteQueue, ends_the_wait_of_a_reader_by_timeout_and_cancel) {
  run(2, [](Collective const& world, MemoryHub&) {
    auto const queue = MessageQueue::create(world, {.chunks = 2});
    if (!queue.is_writer()) {
      auto const error =
          thrown<TimeoutError>([&] { static_cast<void>(queue.dequeue_bytes({.timeout = milliseconds(20)})); });
      EXPECT_THAT(error.failed_ranks(), testing::ElementsAre(0));
      EXPECT_FALSE(queue.wait_for(milliseconds(1)));
      std::thread other([&] { queue.cancel(); });
      EXPECT_THROW(static_cast<void>(queue.dequeue_bytes()), CancelledError);
      other.join();
    }
    world.barrier();
  });
}

TEST_P(RemoteQueue, reports_a_reader_that_left_without_close_to_the_writer) {
  run(2, [](Collective const& world, MemoryHub&) {
    auto queue = MessageQueue::create(world, {.chunks = 2});
    if (queue.is_writer()) {
      auto const error = thrown<PeerLostError>([&] {
        for (int i = 0; i < 10; ++i) queue.enqueue(i);
      });
      EXPECT_THAT(error.failed_ranks(), testing::ElementsAre(1));
      EXPECT_THROW(queue.enqueue(1), PeerLostError) << "a lost reader stays lost";
    } else {
      EXPECT_EQ(queue.dequeue<int>(), 0);
      queue = MessageQueue();
    }
    world.barrier();
  });
}

/// The reader gives up while pieces of the message arrive in its memory.
TEST_P(RemoteQueue, lets_a_reader_leave_in_the_middle_of_a_message) {
  for (int const wait : {0, 1, 2, 5, 10, 20}) {
    run(2, [wait](Collective const& world, MemoryHub&) {
      auto queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 2});
      Bytes const message(world.rank() == 0 ? std::size_t{48} << 20 : 0);
      world.barrier();
      if (queue.is_writer()) {
        queue.enqueue_bytes(message);
      } else {
        try {
          static_cast<void>(queue.dequeue_bytes({.timeout = milliseconds(wait)}));
        } catch (TimeoutError const&) {  // the usual end
        }
        queue = MessageQueue();
      }
      world.barrier();
    });
  }
}

TEST_P(RemoteQueue, stays_usable_without_a_reader_that_closed) {
  run(3, [](Collective const& world, MemoryHub&) {
    auto queue = MessageQueue::create(world, {.writer_rank = 2, .chunk_bytes = 64, .chunks = 2});
    if (queue.is_writer()) {
      for (int i = 0; i < 20; ++i) queue.enqueue(i);
      queue.close();
      EXPECT_TRUE(queue.wait_for(step_timeout));
    } else if (world.rank() == 1) {
      EXPECT_EQ(queue.dequeue<int>(), 0);
      queue.close();
      queue = MessageQueue();
    } else {
      for (int i = 0; i < 20; ++i) EXPECT_EQ(queue.dequeue<int>(), i);
      EXPECT_EQ(queue.dequeue<int>(), std::nullopt);
    }
    world.barrier();
  });
}

TEST_P(RemoteQueue, reports_a_writer_that_left_without_close_to_readers) {
  run(2, [](Collective const& world, MemoryHub&) {
    auto queue = MessageQueue::create(world, {.chunks = 2});
    if (queue.is_writer()) {
      queue.enqueue(7);
      EXPECT_TRUE(queue.wait_for(step_timeout));
      world.barrier();
      queue = MessageQueue();
    } else {
      EXPECT_EQ(queue.dequeue<int>(), 7);
      world.barrier();
      EXPECT_THAT(thrown<PeerLostError>([&] { static_cast<void>(queue.dequeue<int>()); }).failed_ranks(),
                  testing::ElementsAre(0));
    }
    world.barrier();
  });
}

/// A reader gets all messages that were written before the writer closed, even if the writer has left by then.
TEST_P(RemoteQueue, delivers_all_messages_written_before_close) {
  run(2, [](Collective const& world, MemoryHub&) {
    auto queue = MessageQueue::create(world, {.chunks = 6});
    if (queue.is_writer()) {
      for (int i = 0; i < 5; ++i) queue.enqueue(sample(3000, static_cast<unsigned>(i)));
      queue.close();
      queue = MessageQueue();
    } else {
      for (unsigned i = 0; i < 5; ++i) EXPECT_EQ(queue.dequeue<Bytes>(), sample(3000, i));
      EXPECT_EQ(queue.dequeue<Bytes>(), std::nullopt);
    }
    world.barrier();
  });
}

TEST_P(RemoteQueue, names_a_reader_on_a_silent_host) {
  std::promise<void> silenced;
  run(2, [&](Collective const& world, MemoryHub& hub) {
    auto queue = MessageQueue::create(world, {.chunks = 2});
    if (!queue.is_writer())
      return static_cast<void>(silenced.get_future().wait_for(step_timeout));  // its packets are dropped when it leaves
    hub.disconnect(1);
    silenced.set_value();
    queue.enqueue(0);
    queue.enqueue(1);
    EXPECT_THAT(thrown<TimeoutError>([&] { queue.enqueue(2, {.timeout = milliseconds(100)}); }).failed_ranks(),
                testing::ElementsAre(1));
  });
}

/// Rank 1 cannot know for which rank the writer waits, so the writer tells it. The writer learns why rank 1 has left.
TEST_P(RemoteQueue, names_the_same_slow_rank_at_all_endpoints) {
  run(
      3,
      [](Collective const& world, MemoryHub&) {
        auto queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 2});
        if (queue.is_writer()) {
          queue.enqueue(0);
          queue.enqueue(1);
          EXPECT_THAT(thrown<TimeoutError>([&] { queue.enqueue(2, {.timeout = step_timeout}); }).failed_ranks(),
                      testing::ElementsAre(2));
          queue = {};
        } else if (world.rank() == 1) {
          EXPECT_EQ(queue.dequeue<int>(), 0);
          EXPECT_EQ(queue.dequeue<int>(), 1);
          std::vector<int> failed_ranks;
          do {  // until the writer waits, the error blames the writer
            failed_ranks =
                thrown<TimeoutError>([&] { static_cast<void>(queue.dequeue<int>({.timeout = milliseconds(50)})); })
                    .info()
                    .failed_ranks;
          } while (failed_ranks == std::vector<int>{0});
          EXPECT_THAT(failed_ranks, testing::ElementsAre(2));
          // Those were polls. A longer wait that times out is the reason why the queue fails.
          EXPECT_THAT(thrown<TimeoutError>([&] {
                        static_cast<void>(queue.dequeue<int>({.timeout = seconds(4)}));
                      }).failed_ranks(),
                      testing::ElementsAre(2));
          queue = {};
        }
        world.barrier();
        if (world.rank() != 2) return;
        EXPECT_EQ(queue.dequeue<int>(), 0);
        EXPECT_EQ(queue.dequeue<int>(), 1);
        EXPECT_THAT(thrown<TimeoutError>([&] { static_cast<void>(queue.dequeue<int>()); }).failed_ranks(),
                    testing::ElementsAre(2));
      },
      seconds(16));
}

TEST_P(RemoteQueue, names_the_lost_reader_to_the_other_readers) {
  run(4, [](Collective const& world, MemoryHub&) {
    auto queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 2});
    if (world.rank() == 2) queue = {};
    world.barrier();
    if (queue.connected() && queue.is_writer()) {
      auto const error = thrown<PeerLostError>([&] {
        for (int i = 0; i < 10; ++i) queue.enqueue(i);
      });
      EXPECT_THAT(error.failed_ranks(), testing::ElementsAre(2));
      queue = {};
    } else if (world.rank() != 2) {
      auto const error = thrown<PeerLostError>([&] {
        while (true) static_cast<void>(queue.dequeue<int>());
      });
      EXPECT_THAT(error.failed_ranks(), testing::ElementsAre(2));
    }
    world.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Hosts, RemoteQueue, testing::Values(false, true),
                         [](auto const& each) { return each.param ? "with_node_memory" : "packets_alone"; });

TEST(RemoteFailure, counts_the_ranks_that_it_does_not_list) {
  std::vector<int> ranks(19);
  std::iota(ranks.begin(), ranks.end(), 4000);
  auto const shared = node::RingFailure::of(true, ranks);
  EXPECT_EQ(shared.more, 3U);
  EXPECT_EQ(queue::RemoteFailure::of(shared).ring_failure(), shared);
  EXPECT_EQ(queue::RemoteFailure::of({.timed_out = true, .ranks = ranks}).ring_failure(), shared);
}

/// The writer waits for a reader on its node and for more remote ones than its note lists.
TEST(RemoteFailure, is_counted_in_full_by_a_reader_on_the_writers_node) {
  run_thread_ranks(3, [](Collective world) {
    std::vector<int> remote(19);
    std::iota(remote.rbegin(), remote.rend(), 1000);
    auto slow = remote;
    slow.insert(slow.begin(), 2);
    auto const expected = node::RingFailure::of(true, slow);
    auto const comm = node::group_of(world.transport()->node_memory())->shared_comm();
    auto const writer = world.rank() == 0
                            ? node::RingWriter::make(comm, {.chunk_bytes = 64, .chunks = 1, .readers = 2}, "ring")
                            : nullptr;
    auto name = writer ? writer->name() : node::RingId{};
    std::memcpy(&name, world.all_gatherv(std::as_bytes(std::span(&name, 1)))[0].data(), sizeof name);
    auto const reader = writer ? nullptr : node::RingReader::attach(comm, name, world.rank() - 1);
    world.barrier();
    if (writer) {
      auto const message = sample(24, 1);
      node::MessagePart const whole(message);
      writer->put(std::span(&whole, 1));
      writer->status().wait_begins(remote);
    }
    world.barrier();
    if (world.rank() == 1) {
      reader->take();
      EXPECT_EQ(reader->waited_for(), expected) << "while the writer waits";
    }
    world.barrier();
    if (writer) {
      EXPECT_EQ(writer->status().agree_on_timeout(expected, seconds(1), seconds(1)), expected);
    }
    world.barrier();
    if (world.rank() == 1) {
      EXPECT_EQ(reader->waited_for(), expected) << "after the writer's timeout";
    }
    world.barrier();
    world.close();
  });
}

/// Records the pauses and lets them take no time.
class Sleeps final : public platform::System {
 public:
  void sleep(std::chrono::nanoseconds duration) override { all.push_back(duration); }
  void yield() override {}
  std::vector<std::chrono::nanoseconds> all{};
};

TEST(QueueBackoff, is_late_by_at_most_a_fraction_of_the_wait) {
  Sleeps sleeps;
  platform::ScopedSystem const installed(sleeps);
  queue::ProportionalBackoff poll;
  std::chrono::nanoseconds waited{0};
  std::size_t in_a_second = 0;
  for (int polls = 0; waited < std::chrono::seconds(2); ++polls) {
    poll.pause();
    if (polls + 1 < queue::ProportionalBackoff::polls_before_sleep) {
      ASSERT_TRUE(sleeps.all.empty());
      continue;
    }
    ASSERT_LE(sleeps.all.back(), std::max<std::chrono::nanoseconds>(waited / 16, std::chrono::microseconds(5)));
    ASSERT_LE(sleeps.all.back(), std::chrono::milliseconds(2));
    waited += sleeps.all.back();
    if (waited <= std::chrono::seconds(1)) in_a_second = sleeps.all.size();
  }
  EXPECT_LT(in_a_second, 700U);
  EXPECT_EQ(sleeps.all.back(), std::chrono::milliseconds(2));
}

}  // namespace
}  // namespace crossrank::test::queue_remote_test
