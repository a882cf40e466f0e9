#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <stop_token>
#include <thread>

#include <signal.h>

#include "lib/platform/files/fd.hpp"
#include "tools/cli/end_request.hpp"

namespace crossrank::tools {

/// The signals that ask a command to end. Batch systems announce the end of a job by SIGUSR1, SIGUSR2 or SIGXCPU.
inline constexpr std::array interrupt_signals{SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU};

/// Turns `interrupt_signals` into a request to stop. Before `begin_work` a signal also ends the waits of this process,
/// as for ranks that may never connect. A second signal ends the process as usual.
///
/// Must be constructed before the process creates threads, so that every thread has these signals blocked. One at a
/// time.
class InterruptHandler {
 public:
  InterruptHandler();
  ~InterruptHandler();
  InterruptHandler(InterruptHandler const&) = delete;
  InterruptHandler& operator=(InterruptHandler const&) = delete;

  /// Ends the time in which a signal ends waits: all ranks are there, and the work looks at the token.
  void begin_work() noexcept { working_.store(true, std::memory_order_relaxed); }
  /// Requests to stop as if `signal` had arrived.
  void stop(int signal) noexcept;
  [[nodiscard]] std::stop_token token() const noexcept { return stop_.get_token(); }
  /// Returns the first signal, for which it waits a moment, or 0.
  [[nodiscard]] int await_signal() const;
  /// Returns the first signal that arrived, or 0.
  [[nodiscard]] int signal() const noexcept { return signal_.load(std::memory_order_relaxed); }

 private:
  static std::chrono::nanoseconds end_waits() noexcept;
  void watch() noexcept;
  void take() noexcept;

  sigset_t original_{};
  platform::Fd signals_{};
  platform::Fd over_{};
  std::stop_source stop_{};
  std::atomic<bool> working_{false};  ///< orders nothing
  std::atomic<int> signal_{0};        ///< the first, for the exit code; orders nothing
  EndRequest request_{};              ///< used only by the thread
  std::thread thread_{};
};

}  // namespace crossrank::tools
