#pragma once
#include <algorithm>
#include <chrono>

namespace crossrank::platform {

/// A limit on time without progress, counted in slices in which the waiting process was running.
///
/// The waiting thread sleeps at most `next_wait()`, then calls `tick()`, or `progress()` when its peer has made
/// progress. One tick counts at most two slices, so a process that was stopped or suspended for an hour has not timed
/// out.
class Deadline {
 public:
  static constexpr std::chrono::nanoseconds slice = std::chrono::milliseconds(100);

  /// Starts the count, at the time without progress before.
  explicit Deadline(std::chrono::nanoseconds timeout, std::chrono::nanoseconds idle = {}) noexcept;

  /// Restarts the count.
  void progress() noexcept;
  /// Counts the time since the last call of `tick` or `progress`.
  void tick() noexcept;
  [[nodiscard]] bool expired() const noexcept { return idle_ >= timeout_; }
  [[nodiscard]] std::chrono::nanoseconds timeout() const noexcept { return timeout_; }
  /// Returns the counted time since the last progress.
  [[nodiscard]] std::chrono::nanoseconds idle() const noexcept { return idle_; }
  [[nodiscard]] std::chrono::nanoseconds left() const noexcept {
    return expired() ? std::chrono::nanoseconds(0) : timeout_ - idle_;
  }
  /// Returns how long to sleep at most before the next tick.
  [[nodiscard]] std::chrono::nanoseconds next_wait() const noexcept { return std::min(slice, left()); }

 private:
  std::chrono::nanoseconds timeout_;
  std::chrono::nanoseconds idle_;
  std::chrono::nanoseconds last_;
};

}  // namespace crossrank::platform
