#include "lib/platform/format_duration.hpp"

#include <chrono>

#include <gtest/gtest.h>

namespace crossrank::platform {
namespace {

using namespace std::chrono_literals;

TEST(FormatDuration, counts_whole_seconds_from_ten_on) {
  EXPECT_EQ(format_duration(0ms), "0 ms");
  EXPECT_EQ(format_duration(9999ms), "9999 ms");
  EXPECT_EQ(format_duration(10s), "10 s");
  EXPECT_EQ(format_duration(75'900ms), "75 s");
}

TEST(FormatDuration, keeps_long_times_in_milliseconds_on_request) {
  EXPECT_EQ(format_milliseconds(1'999'999ns), "1 ms");
  EXPECT_EQ(format_milliseconds(1min), "60000 ms");
}

}  // namespace
}  // namespace crossrank::platform
