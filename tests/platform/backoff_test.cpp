#include "lib/platform/backoff.hpp"

#include <chrono>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace crossrank::platform {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;

/// Records the pauses and lets them take no time; a yield counts as 0.
class PauseRecorder final : public System {
 public:
  void sleep(std::chrono::nanoseconds duration) override { pauses.push_back(duration); }
  void yield() override { pauses.emplace_back(0); }
  std::vector<std::chrono::nanoseconds> pauses{};
};

class BackoffTest : public testing::Test {
 protected:
  PauseRecorder os_{};
  ScopedSystem scope_{os_};
  Backoff backoff_{{.yields = 2, .shortest_sleep = 3us, .longest_sleep = 10us}};
};

TEST_F(BackoffTest, doubles_its_sleeps_up_to_the_longest) {
  for (int i = 0; i < 6; ++i) backoff_.pause();
  EXPECT_THAT(os_.pauses, ElementsAre(0us, 0us, 3us, 6us, 10us, 10us));
  EXPECT_EQ(backoff_.next(), 10us);
}

TEST_F(BackoffTest, starts_again_with_yields) {
  for (int i = 0; i < 4; ++i) backoff_.pause();
  backoff_.restart();
  EXPECT_EQ(backoff_.next(), 0us);
  os_.pauses.clear();
  for (int i = 0; i < 3; ++i) backoff_.pause();
  EXPECT_THAT(os_.pauses, ElementsAre(0us, 0us, 3us));
}

TEST_F(BackoffTest, sleeps_no_longer_than_the_limit) {
  for (int i = 0; i < 3; ++i) backoff_.pause();
  os_.pauses.clear();
  backoff_.pause(2us);
  backoff_.pause(0us);
  backoff_.pause();
  EXPECT_THAT(os_.pauses, ElementsAre(2us, 0us, 10us));
}

}  // namespace
}  // namespace crossrank::platform
