#pragma once
#include <chrono>

namespace crossrank::tools {

/// The first signal that asked a command to end.
///
/// `timeout` of coreutils sends its signal to the command and then to the process group, which the command is in. So
/// the same signal that comes again at once is not a second request.
class EndRequest {
 public:
  /// Takes a signal. Returns whether it is the first one.
  [[nodiscard]] bool take(int number) noexcept {
    if (signal_ != 0) return false;
    signal_ = number;
    at_ = Clock::now();
    return true;
  }
  /// Returns whether a signal is a copy of the first one. Call it before `take`.
  [[nodiscard]] bool repeats(int number) const noexcept {
    return number == signal_ && Clock::now() - at_ < std::chrono::milliseconds(300);
  }
  /// Returns the first signal, or 0.
  [[nodiscard]] int signal() const noexcept { return signal_; }

 private:
  using Clock = std::chrono::steady_clock;

  int signal_ = 0;
  Clock::time_point at_{};
};

}  // namespace crossrank::tools
