#include "lib/node/memory/store_autotuner.hpp"

#include <functional>
#include <optional>

#include <gtest/gtest.h>

namespace crossrank::node {
namespace {

using std::chrono::nanoseconds;

constexpr std::size_t bytes = std::size_t{64} << 10;
constexpr nanoseconds fast(bytes / 40);
constexpr nanoseconds slow(bytes / 3);

/// Makes `steps` steps that take as long as `time_of` says for their store mode. Returns how many used streaming
/// stores. As in a collective, a step ends when the next one has begun.
int go(StoreAutotuner& speed, int steps, std::function<nanoseconds(StoreMode)> const& time_of) {
  int streamed = 0;
  std::optional<StoreAutotuner::Step> before;
  for (int i = 0; i < steps; ++i) {
    auto const step = speed.next();
    if (before) speed.note(*before, bytes, time_of(before->stores));
    if (step.stores == StoreMode::streaming) ++streamed;
    before = step;
  }
  speed.note(*before, bytes, time_of(before->stores));
  return streamed;
}

nanoseconds with_common_cache(StoreMode way) { return way == StoreMode::normal ? fast : slow; }
nanoseconds without_common_cache(StoreMode way) { return way == StoreMode::normal ? slow : fast; }

constexpr int in_trial = StoreAutotuner::trial_steps / 2;
constexpr int rest = StoreAutotuner::steps_between_trials;
constexpr int period = StoreAutotuner::trial_steps + rest;
constexpr int some = 10;  ///< steps after a trial, after which it has been evaluated

/// Returns an autotuner that has tried both modes.
StoreAutotuner tried(std::function<nanoseconds(StoreMode)> const& time_of) {
  StoreAutotuner speed;
  go(speed, StoreAutotuner::first_steps + StoreAutotuner::trial_steps + some, time_of);
  return speed;
}

TEST(StoreAutotuner, starts_with_normal_stores_and_then_tries_both) {
  StoreAutotuner speed;
  EXPECT_EQ(go(speed, StoreAutotuner::first_steps, with_common_cache), 0);
  EXPECT_EQ(go(speed, StoreAutotuner::trial_steps, with_common_cache), in_trial);
}

TEST(StoreAutotuner, keeps_the_faster_mode) {
  auto cached = tried(with_common_cache);
  EXPECT_EQ(go(cached, rest - some, with_common_cache), 0);
  auto streamed = tried(without_common_cache);
  EXPECT_EQ(go(streamed, rest - some, without_common_cache), rest - some);
}

TEST(StoreAutotuner, adapts_when_the_machine_changes) {
  auto speed = tried(without_common_cache);
  go(speed, period, with_common_cache);
  EXPECT_EQ(go(speed, rest - some, with_common_cache), 0);
  go(speed, StoreAutotuner::trial_steps + some, without_common_cache);
  EXPECT_EQ(go(speed, some, without_common_cache), some);
}

TEST(StoreAutotuner, ignores_single_slow_steps) {
  int step = 0;
  auto const at_times_slow = [&](StoreMode way) {
    return ++step % 3 == 0 ? nanoseconds(100 * slow) : with_common_cache(way);
  };
  auto speed = tried(at_times_slow);
  EXPECT_EQ(go(speed, 3 * period, at_times_slow), 3 * in_trial);
}

TEST(StoreAutotuner, keeps_normal_stores_when_both_are_equally_fast) {
  auto const alike = [](StoreMode) { return slow; };
  auto speed = tried(alike);
  EXPECT_EQ(go(speed, 3 * period, alike), 3 * in_trial);
}

TEST(StoreAutotuner, decides_nothing_without_measurements) {
  StoreAutotuner speed;
  int streamed = 0;
  for (int i = 0; i < StoreAutotuner::first_steps + 2 * period; ++i) {
    if (speed.next().stores == StoreMode::streaming) ++streamed;
  }
  EXPECT_EQ(streamed, 2 * in_trial);
}

/// The first step after a switch reads data that was stored in the other mode.
TEST(StoreAutotuner, ignores_the_first_step_after_a_switch) {
  auto before = StoreMode::normal;
  auto speed = tried([&](StoreMode way) {
    auto const took = before == StoreMode::normal ? nanoseconds(10 * slow) : fast;
    before = way;
    return took;
  });
  EXPECT_EQ(speed.next().stores, StoreMode::streaming);
}

}  // namespace
}  // namespace crossrank::node
