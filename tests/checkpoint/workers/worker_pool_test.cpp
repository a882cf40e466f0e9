// The worker threads of one rank.
#include "workspace/checkpoint/workers/worker_pool.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <latch>
#include <new>
#include <span>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/no_threads.hpp"
#include "tests/support/thread_ranks.hpp"
#include "workspace/checkpoint/workers/equal_options.hpp"

namespace crossrank::checkpoint {
namespace {

class Units final : public PoolWork {
 public:
  explicit Units(int count, std::uint64_t total = 0) : left_(count), total_(total) {}
  bool step() override {
    if (left_.fetch_sub(1) <= 0) return false;
    done_.fetch_add(1);
    return true;
  }
  [[nodiscard]] std::uint64_t bytes_total() const noexcept override { return total_; }
  [[nodiscard]] std::uint64_t bytes_done() const noexcept override { return done_.load(); }

 private:
  std::atomic<int> left_;
  std::uint64_t total_;
  std::atomic<std::uint64_t> done_{0};
};

TEST(WorkerPool, runs_every_unit_once) {
  Units units(1000);
  run_worker_pool(connect({.backend = "fake"}), units, {.operation = "a test", .threads = 3});
  EXPECT_EQ(units.bytes_done(), 1000U);
}

class RefusedMemory final : public PoolWork {
 public:
  bool step() override { throw std::bad_alloc(); }
  [[nodiscard]] std::uint64_t bytes_total() const noexcept override { return 1; }
  [[nodiscard]] std::uint64_t bytes_done() const noexcept override { return 0; }
};

TEST(WorkerPool, reports_refused_memory_as_an_error_of_the_system_with_the_limits) {
  RefusedMemory work;
  auto const error = test::error_of<IoError>(
      [&] { run_worker_pool(connect({.backend = "fake"}), work, {.operation = "a test", .threads = 1}); });
  EXPECT_EQ(error.system_errno, ENOMEM);
  EXPECT_THAT(error.got, testing::ContainsRegex("limits of .*[0-9]+ bytes"));
}

TEST(WorkerPool, waits_longer_than_the_timeout_for_a_rank_that_works) {
  test::run_thread_ranks(2,
                         [](Collective const& world) {
                           auto const work = [&] {
                             if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(600));
                           };
                           EXPECT_NO_THROW(agree(world, "a test", work));
                         },
                         {.timeout = std::chrono::milliseconds(200)});
}

TEST(WorkerPool, is_cancelled_by_its_last_report) {
  Units units(10, 10);
  std::stop_source stop;
  WorkerPoolOptions const options{.operation = "a test",
                                  .threads = 1,
                                  .on_progress =
                                      [&](Progress const& progress) {
                                        if (progress.bytes_done == progress.bytes_total) stop.request_stop();
                                      },
                                  .stop = stop.get_token(),
                                  .stage = "testing"};
  EXPECT_THROW(run_worker_pool(connect({.backend = "fake"}), units, options), CancelledError);
}

TEST(WorkerPool, tells_the_other_ranks_the_type_of_the_callers_exception) {
  test::run_thread_ranks(2, [](Collective const& world) {
    auto const work = [&] {
      if (world.rank() == 0) throw std::out_of_range("there is no row 7");
    };
    if (world.rank() == 0) {
      EXPECT_THROW(agree(world, "a test", work), std::out_of_range);
      return;
    }
    auto const told = test::error_of<RemoteError>([&] { agree(world, "a test", work); });
    EXPECT_EQ(told.remote_type, "std::out_of_range");
    EXPECT_EQ(told.message, "rank 0 threw std::out_of_range: there is no row 7");
  });
}

/// An exchange of one round, whose local part fails on rank 1.
class FailsInRound final : public PoolExchange {
 public:
  explicit FailsInRound(int rank) : rank_(rank) {}
  [[nodiscard]] bool over() const noexcept override { return exchanged_; }
  [[nodiscard]] bool prepare_round(std::chrono::milliseconds) override { return true; }
  void exchange_round(Collective const& world) override {
    world.barrier();
    exchanged_ = true;
  }
  void finish_round() override {
    if (rank_ == 1) throw FormatError({.operation = "combine", .message = "the values do not fit"});
  }
  void stop() noexcept override {}

 private:
  int rank_;
  bool exchanged_ = false;
};

TEST(WorkerPool, tells_all_ranks_of_a_failure_after_an_exchange) {
  test::run_thread_ranks(2, [](Collective const& world) {
    Units units(1);
    FailsInRound exchange(world.rank());
    try {
      run_worker_pool(world, units, {.operation = "a test", .threads = 1, .exchange = &exchange});
      ADD_FAILURE() << "no error";
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), ErrorCode::format) << error.what();
    }
  });
}

/// Fails at its first unit, which waits for the end of the pool.
class FailsLate final : public PoolWork {
 public:
  explicit FailsLate(std::latch& over) : over_(over) {}
  bool step() override {
    over_.wait();
    throw IoError({.operation = "write", .message = "the disk is full"});
  }
  [[nodiscard]] std::uint64_t bytes_total() const noexcept override { return 1; }
  [[nodiscard]] std::uint64_t bytes_done() const noexcept override { return 0; }

 private:
  std::latch& over_;
};

TEST(WorkerPool, reports_the_failure_of_another_rank_rather_than_the_cancellation) {
  std::latch over(1);
  std::stop_source stop;
  stop.request_stop();
  test::run_thread_ranks(2, [&](Collective const& world) {
    Units units(1, 1);
    FailsLate fails(over);
    PoolWork& work = world.rank() == 0 ? static_cast<PoolWork&>(units) : fails;
    WorkerPoolOptions options{.operation = "a test", .threads = 1};
    if (world.rank() == 0) {
      options.stop = stop.get_token();
      options.on_progress = [&](Progress const&) { over.count_down(); };
    }
    try {
      run_worker_pool(world, work, options);
      ADD_FAILURE() << "no error";
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), ErrorCode::io) << error.what();
      EXPECT_THAT(error.what(), testing::HasSubstr("the disk is full"));
    }
  });
}

TEST(WorkerPool, throws_when_no_thread_can_be_started) {
  Units units(10);
  test::NoThreads const none;
  ASSERT_TRUE(none.refused());
  EXPECT_THROW(run_worker_pool(connect({.backend = "fake"}), units, {.operation = "a test", .threads = 3}),
               UnavailableError);
  EXPECT_EQ(units.bytes_done(), 0U);
}

/// Another rank may be in a call of the program that moves bytes in the same way.
TEST(EqualOptions, refuse_ranks_that_are_in_another_call) {
  for (std::string const text : {"abc", "[]"}) {
    auto const errors = test::try_thread_ranks(3, [&](Collective const& world) {
      if (world.rank() == 2) return require_equal_options(world, "a test", {{"format", "torch"}});
      auto const mine = text == "[]" ? text : text + std::to_string(world.rank());
      static_cast<void>(world.all_gatherv(std::as_bytes(std::span(mine))));
    });
    ASSERT_NE(errors[2], nullptr) << text;
    EXPECT_THROW(std::rethrow_exception(errors[2]), MismatchError);
  }
}

}  // namespace
}  // namespace crossrank::checkpoint
