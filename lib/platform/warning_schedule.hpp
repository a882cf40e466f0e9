#pragma once
#include <algorithm>
#include <chrono>
#include <string>

namespace crossrank::platform {

/// When a wait without progress is worth a warning: after a minute, or at half of its limit where that comes sooner,
/// and every ten minutes from then on.
class WarningSchedule {
 public:
  /// Whether a warning is due of a wait that has seen no progress for `silent` and gives up after `limit`. True once
  /// for each warning; starts again when there was progress.
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

/// "250 ms", "60 s".
[[nodiscard]] inline std::string format_duration(std::chrono::nanoseconds time) {
  auto const milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  if (milliseconds < 10'000) return std::to_string(milliseconds) + " ms";
  return std::to_string(milliseconds / 1000) + " s";
}

}  // namespace crossrank::platform
