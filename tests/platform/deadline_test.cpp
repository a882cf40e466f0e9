#include "lib/platform/deadline.hpp"

#include <gtest/gtest.h>

#include "tests/support/faulty_system.hpp"

namespace crossrank::platform {
namespace {

using namespace std::chrono_literals;

class DeadlineTest : public ::testing::Test {
 protected:
  DeadlineTest() { os_.fake_clock(); }
  void pass(std::chrono::nanoseconds time, Deadline& deadline) {
    os_.sleep(time);
    deadline.tick();
  }
  test::FaultySystem os_{};
  ScopedSystem scope_{os_};
};

TEST_F(DeadlineTest, expires_after_its_timeout_in_slices) {
  Deadline deadline(1s);
  for (int i = 0; i < 9; ++i) pass(100ms, deadline);
  EXPECT_FALSE(deadline.expired());
  EXPECT_EQ(deadline.left(), 100ms);
  pass(100ms, deadline);
  EXPECT_TRUE(deadline.expired());
  EXPECT_EQ(deadline.left(), 0ns);
}

TEST_F(DeadlineTest, starts_again_on_progress) {
  Deadline deadline(300ms);
  pass(150ms, deadline);
  pass(100ms, deadline);
  deadline.progress();
  pass(200ms, deadline);
  EXPECT_FALSE(deadline.expired());
  EXPECT_EQ(deadline.idle(), 200ms);
}

TEST_F(DeadlineTest, counts_a_suspension_as_two_slices) {
  Deadline deadline(1s);
  pass(1h, deadline);
  EXPECT_FALSE(deadline.expired());
  EXPECT_EQ(deadline.idle(), 2 * Deadline::slice);
}

TEST_F(DeadlineTest, never_waits_past_itself) {
  Deadline deadline(150ms);
  EXPECT_EQ(deadline.next_wait(), Deadline::slice);
  pass(100ms, deadline);
  EXPECT_EQ(deadline.next_wait(), 50ms);
}

TEST_F(DeadlineTest, expires_at_once_with_a_timeout_of_zero) { EXPECT_TRUE(Deadline(0ns).expired()); }

}  // namespace
}  // namespace crossrank::platform
