#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/message_queue.hpp>

#include "tests/collectives/message_queue/sample_message.hpp"
#include "tests/support/timeouts.hpp"
#include "tests/support/thread_ranks.hpp"

/// The messages of a queue and their order.
namespace crossrank::test {
namespace {

using std::chrono::milliseconds;

TEST(MessageQueue, gives_every_reader_every_message_in_order) {
  for (int writer : {0, 2}) {
    run_thread_ranks(3, [writer](Collective world) {
      auto const queue = MessageQueue::create(world, {.writer_rank = writer, .chunk_bytes = 256, .chunks = 3});
      EXPECT_EQ(queue.is_writer(), world.rank() == writer);
      constexpr unsigned count = 500;
      if (queue.is_writer()) {
        for (unsigned i = 0; i < count; ++i) queue.enqueue_bytes(sample(i % 300, i));
        queue.close();
        EXPECT_EQ(queue.messages(), count);
      } else {
        unsigned seen = 0;
        while (auto const message = queue.dequeue_bytes()) {
          EXPECT_EQ(*message, sample(seen % 300, seen)) << "message " << seen;
          ++seen;
        }
        EXPECT_EQ(seen, count);
        EXPECT_EQ(queue.dequeue_bytes(), std::nullopt) << "the queue must stay at its end";
      }
      world.close();
    });
  }
}

/// Sizes around the size of a chunk, with one chunk and with several. Each queue wraps around and mixes inline and
/// large messages.
TEST(MessageQueue, carries_messages_of_every_size) {
  for (std::size_t const chunks : {std::size_t{1}, std::size_t{2}, std::size_t{5}}) {
    run_thread_ranks(2, [chunks](Collective world) {
      auto const queue = MessageQueue::create(world, {.chunk_bytes = 1000, .chunks = chunks});
      std::vector<std::size_t> const sizes{0, 1, 63, 64, 65, 999, 1000, 1001, 5000, 300'000, 0, 1000};
      unsigned seed = 0;
      for (int round = 0; round < 4; ++round) {
        for (auto const size : sizes) {
          ++seed;
          if (queue.is_writer()) {
            queue.enqueue_bytes(sample(size, seed));
          } else {
            EXPECT_EQ(queue.dequeue_bytes(), sample(size, seed)) << size << " bytes in round " << round;
          }
        }
      }
      if (queue.is_writer()) {
        queue.close();
        EXPECT_TRUE(queue.wait_for(step_timeout));
      }
      world.close();
    });
  }
}

TEST(MessageQueue, frees_the_memory_of_large_messages) {
  ThreadRankOptions options;
  options.arena_cap = std::uint64_t{16} << 20;
  run_thread_ranks(
      2,
      [](Collective world) {
        auto const queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 2});
        auto const message = sample(std::size_t{1} << 20, 5);
        for (int i = 0; i < 100; ++i) {  // six times the memory of the node
          if (queue.is_writer()) {
            queue.enqueue_bytes(message);
          } else {
            EXPECT_EQ(queue.dequeue_bytes(), message);
          }
        }
        world.barrier();
        world.close();
      },
      options);
}

TEST(MessageQueue, keeps_received_tensors_while_chunks_are_reused) {
  run_thread_ranks(2, [](Collective world) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 4096, .chunks = 2});
    std::vector<float> values(2000);
    std::iota(values.begin(), values.end(), 0.5F);
    auto const large = Tensor::of<float>(values, {40, 50});
    auto const small = Tensor::of<float>(std::span<float const>(values).first(6), {2, 3});
    auto const other = Tensor::zeros({40, 50}, Dtype::f32);
    if (queue.is_writer()) {
      queue.enqueue_tensor(large);
      queue.enqueue_tensor(small);
      queue.enqueue_tensor(Tensor::zeros({0, 7}, Dtype::bf16));
      queue.enqueue_tensor(Tensor::scalar<std::int64_t>(42));
      for (int i = 0; i < 16; ++i) queue.enqueue_tensor(other);
    } else {
      auto const first = queue.dequeue_tensor();
      auto second = queue.dequeue_tensor();
      auto const empty = queue.dequeue_tensor();
      auto const scalar = queue.dequeue_tensor();
      for (int i = 0; i < 16; ++i) static_cast<void>(queue.dequeue_tensor());
      ASSERT_TRUE(first && second && empty && scalar);
      EXPECT_EQ(first->shape(), (Shape{40, 50}));
      EXPECT_THAT(first->as<float>(), testing::ElementsAreArray(values));
      EXPECT_THAT(second->as<float>(), testing::ElementsAreArray(std::span<float const>(values).first(6)));
      second->as_mutable<float>()[0] = 7.0F;  // a private copy
      auto frozen = *first;
      EXPECT_THROW(static_cast<void>(frozen.as_mutable<float>()), UsageError);
      EXPECT_EQ(empty->dtype(), Dtype::bf16);
      EXPECT_EQ(empty->numel(), 0);
      EXPECT_EQ(scalar->item<std::int64_t>(), 42);
    }
    world.barrier();
    world.close();
  });
}

TEST(MessageQueue, refuses_a_message_that_is_no_tensor_and_stays_usable) {
  run_thread_ranks(2, [](Collective world) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 512, .chunks = 4});
    if (queue.is_writer()) {
      queue.enqueue_bytes(sample(300, 1));
      queue.enqueue_bytes({});
      queue.enqueue_tensor(Tensor::scalar<std::int32_t>(5));
    } else {
      EXPECT_THROW(static_cast<void>(queue.dequeue_tensor()), FormatError);
      EXPECT_THROW(static_cast<void>(queue.dequeue_tensor()), FormatError);
      EXPECT_EQ(queue.dequeue_tensor().value().item<std::int32_t>(), 5);
    }
    world.barrier();
    world.close();
  });
}

TEST(MessageQueue, frees_the_chunk_of_a_message_whose_reader_threw) {
  run_thread_ranks(2, [](Collective world) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 1});
    if (queue.is_writer()) {
      queue.enqueue_bytes(sample(10, 1));
      queue.enqueue_bytes(sample(10, 2), {.timeout = step_timeout});
    } else {
      EXPECT_THROW(queue.read_bytes([](auto) { throw std::logic_error("no"); }), std::logic_error);
      EXPECT_EQ(queue.dequeue_bytes(), sample(10, 2));
    }
    world.barrier();
    world.close();
  });
}

TEST(MessageQueue, has_no_readers_in_a_group_of_one_rank) {
  auto world = connect({.backend = "fake", .rank = 0, .world_size = 1});
  auto const queue = MessageQueue::create(world, {.chunks = 1});
  for (int i = 0; i < 10; ++i) queue.enqueue_bytes(sample(5, 1), {.timeout = milliseconds(0)});
  queue.close();
  EXPECT_TRUE(queue.wait_for(milliseconds(0)));
  EXPECT_EQ(queue.messages(), 10U);
  EXPECT_THROW(queue.enqueue_bytes({}), UsageError);
}

/// Many small and large arrays at random through two queues at once, as in the reference's stress test, but fewer.
TEST(MessageQueue, carries_many_random_arrays_with_random_pauses) {
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  run_thread_ranks(4, [seed](Collective world) {
    auto const first = MessageQueue::create(world, {.writer_rank = 2, .chunk_bytes = 40 << 10, .chunks = 2});
    auto const second = MessageQueue::create(world, {.writer_rank = 1, .chunk_bytes = 40 << 10, .chunks = 2});
    std::mt19937 numbers(seed);
    std::mt19937 pauses(seed + static_cast<unsigned>(world.rank()) + 1);
    for (unsigned i = 0; i < 600; ++i) {
      auto const message = sample(8 * (1 + numbers() % 9999), i);
      auto const& queue = numbers() % 3 == 0 ? second : first;
      if (pauses() % 16 == 0) world.keep_alive();
      for (auto rest = pauses() % 2000; rest > 0; --rest) std::atomic_signal_fence(std::memory_order_seq_cst);
      if (queue.is_writer()) {
        queue.enqueue_bytes(message);
      } else {
        ASSERT_EQ(queue.dequeue_bytes(), message) << "message " << i;
      }
    }
    world.barrier();
    world.close();
  });
}

}  // namespace
}  // namespace crossrank::test
