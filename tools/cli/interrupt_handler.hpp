#pragma once
#include <atomic>
#include <stop_token>
#include <thread>

#include <signal.h>

#include "lib/platform/fd.hpp"

namespace crossrank::tools {

/// Turns SIGINT, SIGTERM and SIGHUP into a request to stop from `begin_work` on and as long as it lives; a second one,
/// and one before there is anything to leave in order, ends the process as it would have without.
///
/// To be made before any other thread of the process, which then has these signals blocked as well.
class InterruptHandler {
 public:
  InterruptHandler();
  ~InterruptHandler();
  InterruptHandler(InterruptHandler const&) = delete;
  InterruptHandler& operator=(InterruptHandler const&) = delete;

  /// From now on the first signal is a request.
  void begin_work() noexcept { working_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] std::stop_token token() const noexcept { return stop_.get_token(); }
  /// The first signal that came; 0 when none did.
  [[nodiscard]] int signal() const noexcept { return signal_.load(std::memory_order_relaxed); }

 private:
  void watch() noexcept;
  void take() noexcept;

  sigset_t original_{};
  platform::Fd signals_{};
  platform::Fd over_{};
  std::stop_source stop_{};
  std::atomic<bool> working_{false};  ///< only asked when a signal comes: orders nothing
  std::atomic<int> signal_{0};        ///< a number for the exit code: orders nothing
  std::thread thread_{};
};

}  // namespace crossrank::tools
