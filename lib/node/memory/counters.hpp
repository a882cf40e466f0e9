#pragma once
#include <atomic>
#include <cstdint>

namespace crossrank::node {

/// The counters that `crossrank::statistics()` reads. Relaxed: nothing depends on their order.
struct Counters {
  std::atomic<std::uint64_t> bytes_copied{0};
  std::atomic<std::uint64_t> futex_waits{0};
  std::atomic<std::uint64_t> futex_wakes{0};
  std::atomic<std::uint64_t> yields{0};
  std::atomic<std::uint64_t> arena_growths{0};
};

[[nodiscard]] Counters& counters() noexcept;

inline void count(std::atomic<std::uint64_t>& counter, std::uint64_t by = 1) noexcept {
  counter.fetch_add(by, std::memory_order_relaxed);
}

}  // namespace crossrank::node
