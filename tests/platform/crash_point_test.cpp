#include "lib/platform/crash_point.hpp"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace crossrank::platform {
namespace {

void visit_first() { CROSSRANK_CRASH_POINT("test.first"); }
void visit_second() { CROSSRANK_CRASH_POINT("test.second"); }

TEST(CrashPoint, does_nothing_unless_armed) {
  visit_first();
  SUCCEED();
}

TEST(CrashPoint, records_each_name_once) {
  record_crash_points(true);
  visit_second();
  visit_first();
  visit_second();
  EXPECT_THAT(recorded_crash_points(), ::testing::ElementsAre("test.first", "test.second"));
  record_crash_points(false);
}

TEST(CrashPointDeathTest, kills_at_the_chosen_visit) {
  EXPECT_EXIT(
      {
        arm_crash_point("test.first", 2);
        visit_second();
        visit_first();
        visit_first();
      },
      ::testing::KilledBySignal(SIGKILL), "");
}

TEST(CrashPointDeathTest, does_not_kill_before_the_chosen_visit) {
  EXPECT_EXIT(
      {
        arm_crash_point("test.first", 3);
        visit_first();
        visit_first();
        std::_Exit(17);
      },
      ::testing::ExitedWithCode(17), "");
}

}  // namespace
}  // namespace crossrank::platform
