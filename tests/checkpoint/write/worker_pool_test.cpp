// The worker threads of one rank.
#include "workspace/checkpoint/workers/worker_pool.hpp"

#include <atomic>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "tests/support/no_threads.hpp"

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

TEST(WorkerPool, runs_every_unit_once) {
  Units units(1000);
  run_worker_pool(connect({.backend = "fake"}), units, {.operation = "a test", .threads = 3});
  EXPECT_EQ(units.bytes_done(), 1000U);
}

TEST(WorkerPool, throws_when_no_thread_can_be_started) {
  Units units(10);
  test::NoThreads const none;
  ASSERT_TRUE(none.refused());
  EXPECT_THROW(run_worker_pool(connect({.backend = "fake"}), units, {.operation = "a test", .threads = 3}),
               UnavailableError);
  EXPECT_EQ(units.bytes_done(), 0U);
}

}  // namespace
}  // namespace crossrank::checkpoint
