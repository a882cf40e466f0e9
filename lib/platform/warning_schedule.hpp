#pragma once
#include <algorithm>
#include <chrono>

namespace crossrank::platform {

/// Decides when a wait without progress logs a warning: after a minute, or after half of its limit if that is shorter,
/// then every ten minutes.
class WarningSchedule {
 public:
  /// Returns whether a warning is due for a wait that has made no progress for `silent` and times out after `limit`.
  /// Returns true once for each warning; starts again after progress.
  [[nodiscard]] bool is_due(std::chrono::nanoseconds silent, std::chrono::nanoseconds limit) noexcept {
    if (silent < last_) next_ = none;
    last_ = silent;
    if (silent < (next_ == none ? std::min<std::chrono::nanoseconds>(first, limit / 2) : next_)) return false;
    next_ = silent + again;
    return true;
  }

 private:
  static constexpr auto first = std::chrono::minutes(1);
  static constexpr auto again = std::chrono::minutes(10);
  static constexpr auto none = std::chrono::nanoseconds(-1);
  std::chrono::nanoseconds last_{};
  std::chrono::nanoseconds next_ = none;
};

}  // namespace crossrank::platform
