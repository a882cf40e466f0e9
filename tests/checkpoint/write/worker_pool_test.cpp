// The worker threads of one rank.
#include "workspace/checkpoint/workers/worker_pool.hpp"

#include <atomic>

#include <gtest/gtest.h>
#include <pthread.h>

#include <crossrank/error.hpp>

namespace crossrank::checkpoint {
namespace {

class Units final : public PoolWork {
 public:
  explicit Units(int count) : left_(count) {}
  bool step() override {
    if (left_.fetch_sub(1) <= 0) return false;
    done_.fetch_add(1);
    return true;
  }
  [[nodiscard]] std::uint64_t bytes_total() const noexcept override { return 0; }
  [[nodiscard]] std::uint64_t bytes_done() const noexcept override { return done_.load(); }

 private:
  std::atomic<int> left_;
  std::atomic<std::uint64_t> done_{0};
};

/// Prevents new threads during its lifetime, by a default stack size that is larger than the address space.
class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, std::size_t{1} << 62U);
    refused_ = pthread_setattr_default_np(&huge) == 0;
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  NoThreads(NoThreads const&) = delete;
  NoThreads& operator=(NoThreads const&) = delete;
  [[nodiscard]] bool refused() const noexcept { return refused_; }

 private:
  pthread_attr_t before_{};
  bool refused_ = false;
};

TEST(WorkerPool, runs_every_unit_once) {
  Units units(1000);
  run_worker_pool(connect({.backend = "fake"}), units, {.operation = "a test", .threads = 3});
  EXPECT_EQ(units.bytes_done(), 1000U);
}

TEST(WorkerPool, throws_when_no_thread_can_be_started) {
  Units units(10);
  NoThreads const none;
  ASSERT_TRUE(none.refused());
  EXPECT_THROW(run_worker_pool(connect({.backend = "fake"}), units, {.operation = "a test", .threads = 3}),
               UnavailableError);
  EXPECT_EQ(units.bytes_done(), 0U);
}

}  // namespace
}  // namespace crossrank::checkpoint
