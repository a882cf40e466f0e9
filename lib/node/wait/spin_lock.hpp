#pragma once
#include <atomic>

#include "lib/platform/system.hpp"

namespace crossrank::node {

/// A lock for sections of a few stores, which threads rarely enter at the same time. Half as many locked instructions
/// as a `std::mutex`, which count on the path of a message.
class SpinLock {
 public:
  void lock() noexcept {
    while (held_.test_and_set(std::memory_order_acquire)) platform::system().yield();
  }
  void unlock() noexcept { held_.clear(std::memory_order_release); }

 private:
  std::atomic_flag held_{};
};

}  // namespace crossrank::node
