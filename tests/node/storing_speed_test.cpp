#include "lib/node/storing_speed.hpp"

#include <functional>
#include <optional>

#include <gtest/gtest.h>

namespace crossrank::node {
namespace {

using platform::Stores;
using std::chrono::nanoseconds;

constexpr std::size_t bytes = std::size_t{64} << 10;
constexpr nanoseconds fast(bytes / 40);
constexpr nanoseconds slow(bytes / 3);

/// Makes so many steps, each of which takes as long as `time_of` says of its way; how many went past the caches. As in
/// a collective, a step has ended when the next one has begun.
int go(StoringSpeed& speed, int steps, std::function<nanoseconds(Stores)> const& time_of) {
  int streamed = 0;
  std::optional<StoringSpeed::Step> before;
  for (int i = 0; i < steps; ++i) {
    auto const step = speed.next();
    if (before) speed.note(*before, bytes, time_of(before->stores));
    if (step.stores == Stores::streaming) ++streamed;
    before = step;
  }
  speed.note(*before, bytes, time_of(before->stores));
  return streamed;
}

nanoseconds with_common_cache(Stores way) { return way == Stores::normal ? fast : slow; }
nanoseconds without_common_cache(Stores way) { return way == Stores::normal ? slow : fast; }

constexpr int in_trial = StoringSpeed::trial_steps / 2;
constexpr int rest = StoringSpeed::steps_between_trials;
constexpr int period = StoringSpeed::trial_steps + rest;
constexpr int some = 10;  ///< steps after a trial, by which it has been judged

/// A speed of which both ways have been tried.
StoringSpeed tried(std::function<nanoseconds(Stores)> const& time_of) {
  StoringSpeed speed;
  go(speed, StoringSpeed::first_steps + StoringSpeed::trial_steps + some, time_of);
  return speed;
}

TEST(StoringSpeed, goes_through_the_caches_at_first_and_then_tries_both_ways) {
  StoringSpeed speed;
  EXPECT_EQ(go(speed, StoringSpeed::first_steps, with_common_cache), 0);
  EXPECT_EQ(go(speed, StoringSpeed::trial_steps, with_common_cache), in_trial);
}

TEST(StoringSpeed, keeps_the_better_way) {
  auto cached = tried(with_common_cache);
  EXPECT_EQ(go(cached, rest - some, with_common_cache), 0);
  auto streamed = tried(without_common_cache);
  EXPECT_EQ(go(streamed, rest - some, without_common_cache), rest - some);
}

TEST(StoringSpeed, follows_a_machine_that_moves) {
  auto speed = tried(without_common_cache);
  go(speed, period, with_common_cache);
  EXPECT_EQ(go(speed, rest - some, with_common_cache), 0);
  go(speed, StoringSpeed::trial_steps + some, without_common_cache);
  EXPECT_EQ(go(speed, some, without_common_cache), some);
}

TEST(StoringSpeed, takes_single_slow_steps_for_accidents) {
  int step = 0;
  auto const at_times_slow = [&](Stores way) {
    return ++step % 3 == 0 ? nanoseconds(100 * slow) : with_common_cache(way);
  };
  auto speed = tried(at_times_slow);
  EXPECT_EQ(go(speed, 3 * period, at_times_slow), 3 * in_trial);
}

TEST(StoringSpeed, stays_with_the_caches_where_both_ways_take_as_long) {
  auto const alike = [](Stores) { return slow; };
  auto speed = tried(alike);
  EXPECT_EQ(go(speed, 3 * period, alike), 3 * in_trial);
}

TEST(StoringSpeed, decides_nothing_when_nothing_was_noted) {
  StoringSpeed speed;
  int streamed = 0;
  for (int i = 0; i < StoringSpeed::first_steps + 2 * period; ++i) {
    if (speed.next().stores == Stores::streaming) ++streamed;
  }
  EXPECT_EQ(streamed, 2 * in_trial);
}

/// The first step of a turn reads what was stored the other way.
TEST(StoringSpeed, does_not_count_what_the_other_way_left) {
  auto before = Stores::normal;
  auto speed = tried([&](Stores way) {
    auto const took = before == Stores::normal ? nanoseconds(10 * slow) : fast;
    before = way;
    return took;
  });
  EXPECT_EQ(speed.next().stores, Stores::streaming);
}

}  // namespace
}  // namespace crossrank::node
