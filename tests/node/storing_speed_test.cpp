#include "lib/node/storing_speed.hpp"

#include <gtest/gtest.h>

namespace crossrank::node {
namespace {

using std::chrono::nanoseconds;

constexpr std::size_t bytes = std::size_t{64} << 10;
constexpr nanoseconds fast(bytes / 40);
constexpr nanoseconds slow(bytes / 3);

TEST(StoringSpeed, goes_past_the_caches_once_many_stores_in_a_row_were_slow) {
  StoringSpeed speed;
  for (int i = 0; i < StoringSpeed::slow_stores; ++i) {
    EXPECT_FALSE(speed.next_goes_past_caches());
    speed.note(bytes, slow);
  }
  EXPECT_TRUE(speed.next_goes_past_caches());
}

TEST(StoringSpeed, takes_single_slow_stores_for_accidents) {
  StoringSpeed speed;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(speed.next_goes_past_caches());
    speed.note(bytes, i % StoringSpeed::slow_stores == 0 ? fast : slow);
  }
}

TEST(StoringSpeed, tries_the_caches_again_now_and_then) {
  StoringSpeed speed;
  for (int i = 0; i < StoringSpeed::slow_stores; ++i) speed.note(bytes, slow);
  for (int i = 0; i < StoringSpeed::stores_until_retry; ++i) EXPECT_TRUE(speed.next_goes_past_caches());
  EXPECT_FALSE(speed.next_goes_past_caches());
  speed.note(bytes, fast);
  EXPECT_FALSE(speed.next_goes_past_caches());
}

}  // namespace
}  // namespace crossrank::node
