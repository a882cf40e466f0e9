#pragma once
#include <algorithm>
#include <chrono>

#include "lib/platform/system.hpp"

namespace crossrank::queue {

/// Waiting for what rings no bell: looks often at first, then less and less.
class Poll {
 public:
  void pause() {
    if (++count_ < looks_before_sleep) return platform::system().yield();
    platform::system().sleep(sleep_);
    sleep_ = std::min<std::chrono::nanoseconds>(sleep_ * 2, longest_sleep);
  }

 private:
  static constexpr int looks_before_sleep = 200;
  static constexpr std::chrono::nanoseconds longest_sleep = std::chrono::milliseconds(2);

  int count_ = 0;
  std::chrono::nanoseconds sleep_ = std::chrono::microseconds(5);
};

}  // namespace crossrank::queue
