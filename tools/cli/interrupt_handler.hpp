#pragma once
#include <atomic>
#include <stop_token>
#include <thread>

#include <signal.h>

#include "lib/platform/files/fd.hpp"
#include "tools/cli/end_request.hpp"

namespace crossrank::tools {

/// Turns SIGINT, SIGTERM and SIGHUP into a request to stop, from `begin_work` until destruction. A signal before
/// `begin_work`, and a second signal, end the process as usual.
///
/// Must be constructed before the process creates threads, so that every thread has these signals blocked.
class InterruptHandler {
 public:
  InterruptHandler();
  ~InterruptHandler();
  InterruptHandler(InterruptHandler const&) = delete;
  InterruptHandler& operator=(InterruptHandler const&) = delete;

  /// Makes the next signal a request to stop.
  void begin_work() noexcept { working_.store(true, std::memory_order_relaxed); }
  /// Requests to stop as if `signal` had arrived.
  void stop(int signal) noexcept;
  [[nodiscard]] std::stop_token token() const noexcept { return stop_.get_token(); }
  /// Returns the first signal that arrived, or 0.
  [[nodiscard]] int signal() const noexcept { return signal_.load(std::memory_order_relaxed); }

 private:
  void watch() noexcept;
  void take() noexcept;

  sigset_t original_{};
  platform::Fd signals_{};
  platform::Fd over_{};
  std::stop_source stop_{};
  std::atomic<bool> working_{false};  ///< read only when a signal arrives; orders nothing
  std::atomic<int> signal_{0};        ///< the first, for the exit code; orders nothing
  EndRequest request_{};              ///< used only by the thread
  std::thread thread_{};
};

}  // namespace crossrank::tools
