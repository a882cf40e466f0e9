#pragma once
#include <algorithm>
#include <chrono>

#include "lib/platform/system.hpp"

namespace crossrank::queue {

/// Paces the polling of a source that rings no doorbell: often at first, then less and less.
///
/// Each pause is a sixteenth of the wait so far, so an event is noticed late by no more than that, whatever the
/// sender's pace. Even a long wait costs only some hundred polls before the longest pause is reached.
class ProportionalBackoff {
 public:
  static constexpr int polls_before_sleep = 200;
  static constexpr int share = 16;
  static constexpr std::chrono::nanoseconds shortest_sleep = std::chrono::microseconds(5);
  static constexpr std::chrono::nanoseconds longest_sleep = std::chrono::milliseconds(2);

  void pause() {
    if (++count_ < polls_before_sleep) return platform::system().yield();
    auto const now = std::clamp(slept_ / share, shortest_sleep, longest_sleep);
    platform::system().sleep(now);
    slept_ += now;
  }

 private:
  int count_ = 0;
  std::chrono::nanoseconds slept_{0};
};

}  // namespace crossrank::queue
