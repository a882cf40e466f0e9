#pragma once
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>

#include "lib/platform/system.hpp"

namespace crossrank::test {

/// A clock that only sleeping moves. Each sleep takes no real time and counts as at least a tenth of a second, so hours
/// of waiting pass in moments. The clock is that of the operating system before `start`; it no longer moves after
/// `hold`.
class VirtualClock : public platform::System {
 public:
  void start() noexcept { running_ = true; }
  /// Sleeping no longer moves the clock, and takes real time again.
  void hold() noexcept { held_ = true; }

  std::chrono::nanoseconds now() override {
    return running_ ? std::chrono::nanoseconds(base_ + passed_) : platform::System::now();
  }
  void sleep(std::chrono::nanoseconds duration) override {
    if (!running_ || held_) return platform::System::sleep(duration);
    pass(duration);
  }
  int futex_wait(std::uint32_t const* word, std::uint32_t expected, std::chrono::nanoseconds limit) override {
    if (!running_ || held_) return platform::System::futex_wait(word, expected, limit);
    if (std::atomic_ref(*const_cast<std::uint32_t*>(word)).load() != expected) {
      errno = EAGAIN;
      return -1;
    }
    pass(limit);
    errno = ETIMEDOUT;
    return -1;
  }

 private:
  void pass(std::chrono::nanoseconds duration) {
    passed_ += std::max<std::int64_t>(duration.count(), 100'000'000);
    platform::System::yield();
  }

  std::int64_t base_ = platform::System::now().count();
  std::atomic<std::int64_t> passed_{0};
  std::atomic<bool> running_{false};
  std::atomic<bool> held_{false};
};

}  // namespace crossrank::test
