#include "lib/platform/guarded_call.hpp"

#include <chrono>
#include <latch>
#include <memory>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

namespace crossrank::platform {
namespace {

TEST(GuardedCall, returns_a_result_that_comes_at_the_limit) {
  auto const may_end = std::make_shared<std::latch>(1);
  auto const result = guarded_call(
      [may_end](GuardedCall&) {
        may_end->wait();
        return 7;
      },
      {.limit = std::chrono::milliseconds(1),
       .between =
           [may_end, ended = false]() mutable {
             if (std::exchange(ended, true)) return;
             may_end->count_down();
             std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the call ends, although it is too late
           },
       .what = "a test"});
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(*result, 7);
}

}  // namespace
}  // namespace crossrank::platform
