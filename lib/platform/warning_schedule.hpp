#pragma once
#include <algorithm>
#include <chrono>
#include <string>

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

/// Formats a duration: "250 ms", "60 s".
[[nodiscard]] inline std::string format_duration(std::chrono::nanoseconds time) {
  auto const milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  if (milliseconds < 10'000) return std::to_string(milliseconds) + " ms";
  return std::to_string(milliseconds / 1000) + " s";
}

}  // namespace crossrank::platform
