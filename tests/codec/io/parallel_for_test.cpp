// Tests of work that several threads share.
#include "lib/codec/io/parallel_for.hpp"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace crossrank::codec {
namespace {

constexpr std::uint64_t few_bytes = 1000;
constexpr std::uint64_t many_bytes = std::uint64_t{1} << 30;

TEST(ParallelFor, calls_each_index_once) {
  for (auto const bytes : {few_bytes, many_bytes}) {
    std::vector<std::atomic<int>> done(1000);
    parallel_for(done.size(), bytes, [&](std::size_t index) { ++done[index]; });
    EXPECT_TRUE(std::all_of(done.begin(), done.end(), [](auto const& count) { return count == 1; })) << bytes;
  }
}

TEST(ParallelFor, stays_in_the_calling_thread_for_few_bytes) {
  auto const self = std::this_thread::get_id();
  parallel_for(100, few_bytes, [&](std::size_t) { EXPECT_EQ(std::this_thread::get_id(), self); });
}

TEST(ParallelFor, throws_the_first_error_and_stops) {
  std::atomic<std::size_t> done{0};
  auto const work = [&](std::size_t index) {
    if (index == 3) throw std::runtime_error("index 3");
    ++done;
  };
  EXPECT_THROW(parallel_for(1'000'000, many_bytes, work), std::runtime_error);
  EXPECT_LT(done.load(), 1'000'000U);
}

TEST(ParallelFor, throws_the_error_of_the_lowest_index) {
  // Index 0 fails after another index has failed.
  std::atomic<int> failed{0};
  auto const work = [&](std::size_t index) {
    if (index == 0) {
      while (failed.load() == 0) std::this_thread::yield();
    }
    ++failed;
    throw std::runtime_error("index " + std::to_string(index));
  };
  try {
    parallel_open(8, work);
    FAIL();
  } catch (std::runtime_error const& error) {
    EXPECT_STREQ(error.what(), "index 0");
  }
}

TEST(ParallelFor, opens_each_file_once) {
  for (std::size_t const count : {1U, 7U, 8U, 1000U}) {
    std::vector<std::atomic<int>> done(count);
    parallel_open(count, [&](std::size_t index) { ++done[index]; });
    EXPECT_TRUE(std::all_of(done.begin(), done.end(), [](auto const& calls) { return calls == 1; })) << count;
  }
}

TEST(ParallelFor, blocks_signals_in_its_threads) {
  auto const self = std::this_thread::get_id();
  std::atomic<int> others{0};
  parallel_open(8, [&](std::size_t) {
    if (std::this_thread::get_id() == self) {
      while (others.load() == 0) std::this_thread::yield();
      return;
    }
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    EXPECT_EQ(sigismember(&blocked, SIGINT), 1);
    ++others;
  });
}

TEST(ParallelFor, does_nothing_for_a_count_of_zero) {
  parallel_for(0, many_bytes, [](std::size_t) { FAIL(); });
}

}  // namespace
}  // namespace crossrank::codec
