#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/message_queue.hpp>

#include "lib/platform/system.hpp"
#include "tests/support/thread_ranks.hpp"

/// Tensors of every form, and readers whose wake-up does not come.
namespace crossrank::test {
namespace {

/// Elements of 3/4 to 16 bytes: 24 of them are whole bytes in every dtype.
Tensor sample(Dtype dtype, Shape const& shape, int seed) {
  auto tensor = Tensor::empty(shape, dtype);
  auto const bytes = tensor.mutable_bytes();
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] =
        static_cast<std::byte>(dtype == Dtype::boolean ? i % 2 : (i * 5 + static_cast<std::size_t>(seed)) & 0xff);
  return tensor;
}

/// Small ones travel in a chunk, large ones by their place in the writer's memory.
std::vector<Tensor> tensors_of_every_form() {
  std::vector<Tensor> all;
  for (std::size_t number = 0; number < dtype_count; ++number) {
    auto const dtype = static_cast<Dtype>(number);
    all.push_back(sample(dtype, {2, 3, 4}, static_cast<int>(number)));
    all.push_back(sample(dtype, {24, 1000}, static_cast<int>(number)));
    all.push_back(sample(dtype, {0, 7}, 0));
  }
  all.push_back(Tensor::scalar<double>(0.1));
  all.push_back(sample(Dtype::bf16, {9, 500}, 3).narrow(0, 2, 5));
  return all;
}

TEST(QueueTensors, of_every_form_arrive_as_they_were) {
  run_thread_ranks(3, [](Collective world) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 2048, .chunks = 4});
    auto const expected = tensors_of_every_form();
    if (queue.is_writer()) {
      for (auto const& tensor : expected) queue.enqueue(tensor);
    } else {
      std::vector<Tensor> got;
      for (std::size_t i = 0; i < expected.size(); ++i) got.push_back(queue.dequeue<Tensor>().value());
      // Looked at last: chunks that are used again must not change what was received from them.
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(got[i].dtype(), expected[i].dtype()) << i;
        EXPECT_EQ(got[i].shape(), expected[i].shape()) << i;
        EXPECT_TRUE(std::ranges::equal(got[i].bytes(), expected[i].bytes())) << i;
      }
    }
    world.barrier();
    world.close();
  });
}

/// Counts the sleeps of the reader; the watchers sleep as well.
struct ReaderSleeps : platform::System {
  int futex_wait(std::uint32_t const* word, std::uint32_t expected, std::chrono::nanoseconds limit) override {
    if (std::this_thread::get_id() == reader.load()) ++sleeps;
    return sleep_on(word, expected, limit);
  }
  virtual int sleep_on(std::uint32_t const* word, std::uint32_t expected, std::chrono::nanoseconds limit) {
    return System::futex_wait(word, expected, limit);
  }
  std::atomic<std::thread::id> reader{};
  std::atomic<int> sleeps{0};
};

/// Loses every wake-up.
struct SilentSystem final : ReaderSleeps {
  int futex_wake(std::uint32_t const*, int) override { return 0; }
};

/// Says of every sleep that its time was over, whatever has happened meanwhile.
struct ImpatientSystem final : ReaderSleeps {
  int sleep_on(std::uint32_t const*, std::uint32_t, std::chrono::nanoseconds) override {
    yield();
    errno = ETIMEDOUT;
    return -1;
  }
};

/// Each message is written while the reader sleeps.
void exchange_under(ReaderSleeps& broken) {
  platform::ScopedSystem const installed(broken);
  run_thread_ranks(2, [&](Collective world) {
    auto const queue = MessageQueue::create(world, {.chunk_bytes = 64, .chunks = 4});
    if (!queue.is_writer()) broken.reader = std::this_thread::get_id();
    world.barrier();
    for (int i = 0; i < 4; ++i) {
      if (queue.is_writer()) {
        for (auto const before = broken.sleeps.load(); broken.sleeps == before;) std::this_thread::yield();
        queue.enqueue(i);
      } else {
        EXPECT_EQ(queue.dequeue<int>(), i);
      }
    }
    broken.reader = std::thread::id{};
    world.close();
  });
}

TEST(QueueWake, that_is_lost_costs_time_but_no_message) {
  SilentSystem silent;
  exchange_under(silent);
}

TEST(QueueWake, that_says_time_is_over_is_not_believed_before_a_look) {
  ImpatientSystem impatient;
  exchange_under(impatient);
}

}  // namespace
}  // namespace crossrank::test
