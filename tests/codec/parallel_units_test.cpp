// Work in units that several threads share.
#include "lib/codec/parallel_units.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace crossrank::codec {
namespace {

constexpr std::uint64_t few_bytes = 1000;
constexpr std::uint64_t many_bytes = std::uint64_t{1} << 30;

TEST(ParallelUnits, does_each_unit_once) {
  for (auto const bytes : {few_bytes, many_bytes}) {
    std::vector<std::atomic<int>> done(1000);
    for_each_unit(done.size(), bytes, [&](std::size_t unit) { ++done[unit]; });
    EXPECT_TRUE(std::all_of(done.begin(), done.end(), [](auto const& count) { return count == 1; })) << bytes;
  }
}

TEST(ParallelUnits, stays_in_the_calling_thread_for_few_bytes) {
  auto const self = std::this_thread::get_id();
  for_each_unit(100, few_bytes, [&](std::size_t) { EXPECT_EQ(std::this_thread::get_id(), self); });
}

TEST(ParallelUnits, throws_the_first_error_and_does_no_more) {
  std::atomic<std::size_t> done{0};
  auto const work = [&](std::size_t unit) {
    if (unit == 3) throw std::runtime_error("unit 3");
    ++done;
  };
  EXPECT_THROW(for_each_unit(1'000'000, many_bytes, work), std::runtime_error);
  EXPECT_LT(done.load(), 1'000'000U);
}

TEST(ParallelUnits, does_nothing_without_units) {
  for_each_unit(0, many_bytes, [](std::size_t) { FAIL(); });
}

}  // namespace
}  // namespace crossrank::codec
