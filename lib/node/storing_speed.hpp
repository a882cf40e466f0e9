#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>

namespace crossrank::node {

/// Whether storing where peers read is slow, as it is while their cores hold the old lines and have no cache in common
/// with this one: then it pays to store past the caches.
///
/// Measured, and again now and then: virtual machines say little about their caches and move from core to core. On one
/// and the same, ordinary stores ran at 48 GB/s in one minute and at 2 to 10 in another; past the caches always at 30
/// to 50, but then the readers get the bytes from memory, at half the speed.
class StoringSpeed {
 public:
  /// Shorter stores say nothing.
  static constexpr std::size_t least_bytes = std::size_t{16} << 10;
  /// So many slow ones in a row are no accident, as those of a rank that lost its CPU are.
  static constexpr int slow_stores = 8;
  /// After so many past the caches the ordinary way is tried again.
  static constexpr int stores_until_retry = 512;
  static constexpr double slow_bytes_per_ns = 12;

  /// Notes one ordinary store.
  void note(std::size_t bytes, std::chrono::nanoseconds took) noexcept {
    bool const is_slow = static_cast<double>(bytes) < slow_bytes_per_ns * static_cast<double>(took.count());
    if (!is_slow) return in_a_row_.store(0, std::memory_order_relaxed);
    if (in_a_row_.fetch_add(1, std::memory_order_relaxed) + 1 < slow_stores) return;
    in_a_row_.store(0, std::memory_order_relaxed);
    past_caches_.store(stores_until_retry, std::memory_order_relaxed);
  }
  /// How the next store is to go: true past the caches, false in the ordinary way, which is then to be noted.
  [[nodiscard]] bool next_goes_past_caches() noexcept {
    auto const left = past_caches_.load(std::memory_order_relaxed);
    if (left == 0) return false;
    past_caches_.store(left - 1, std::memory_order_relaxed);
    return true;
  }

 private:
  // A rank may use its groups from several threads; a store that is counted twice or not at all does no harm.
  std::atomic<int> in_a_row_{0};
  std::atomic<int> past_caches_{0};
};

}  // namespace crossrank::node
