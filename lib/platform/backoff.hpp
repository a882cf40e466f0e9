#pragma once
#include <algorithm>
#include <chrono>

#include "lib/platform/system.hpp"

namespace crossrank::platform {

/// The pauses of a polling wait: yields at first, then sleeps, each twice as long as the one before.
class Backoff {
 public:
  struct Rule {
    int yields = 1;  ///< before the first sleep
    std::chrono::nanoseconds shortest_sleep = std::chrono::microseconds(1);
    std::chrono::nanoseconds longest_sleep = std::chrono::microseconds(200);
  };

  Backoff() noexcept : Backoff(Rule()) {}
  explicit Backoff(Rule const& rule) noexcept : rule_(rule), sleep_(rule.shortest_sleep) {}

  /// Starts again with yields, because something has moved.
  void restart() noexcept {
    yielded_ = 0;
    sleep_ = rule_.shortest_sleep;
  }
  /// Returns how long the next pause sleeps; 0 for a yield.
  [[nodiscard]] std::chrono::nanoseconds next() const noexcept {
    return yielded_ < rule_.yields ? std::chrono::nanoseconds::zero() : sleep_;
  }
  /// Yields, or sleeps no longer than `limit`.
  void pause(std::chrono::nanoseconds limit = std::chrono::nanoseconds::max()) {
    auto const sleep = std::min(next(), limit);
    if (sleep <= std::chrono::nanoseconds::zero()) {
      yielded_ = std::min(yielded_ + 1, rule_.yields);
      return system().yield();
    }
    system().sleep(sleep);
    sleep_ = std::min(2 * sleep_, rule_.longest_sleep);
  }

 private:
  Rule rule_;
  int yielded_ = 0;
  std::chrono::nanoseconds sleep_;
};

}  // namespace crossrank::platform
