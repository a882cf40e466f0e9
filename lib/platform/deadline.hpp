#pragma once
#include <algorithm>
#include <chrono>

namespace crossrank::platform {

/// Whoever wants to wait for longer waits for this: sums of such times and the clock stay in range.
inline constexpr std::chrono::milliseconds max_wait = std::chrono::hours(24 * 36'500);

/// A limit on time without progress, counted in slices that the waiter itself was awake for.
///
/// The waiter sleeps at most `next_wait()`, then calls `tick()`, or `progress()` when whom it waits for has moved on.
/// One tick accounts for two slices at most: a process that was stopped or suspended for an hour has not timed out.
class Deadline {
 public:
  static constexpr std::chrono::nanoseconds slice = std::chrono::milliseconds(100);

  explicit Deadline(std::chrono::nanoseconds timeout) noexcept;

  /// Starts the count again.
  void progress() noexcept;
  /// Accounts for the time since the last call of `tick` or `progress`.
  void tick() noexcept;
  [[nodiscard]] bool expired() const noexcept { return idle_ >= timeout_; }
  [[nodiscard]] std::chrono::nanoseconds timeout() const noexcept { return timeout_; }
  /// Time accounted for since the last progress.
  [[nodiscard]] std::chrono::nanoseconds idle() const noexcept { return idle_; }
  [[nodiscard]] std::chrono::nanoseconds left() const noexcept {
    return expired() ? std::chrono::nanoseconds(0) : timeout_ - idle_;
  }
  /// How long to sleep before the next tick.
  [[nodiscard]] std::chrono::nanoseconds next_wait() const noexcept { return std::min(slice, left()); }

 private:
  std::chrono::nanoseconds timeout_;
  std::chrono::nanoseconds idle_{0};
  std::chrono::nanoseconds last_;
};

}  // namespace crossrank::platform
