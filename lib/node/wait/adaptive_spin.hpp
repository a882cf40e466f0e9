#pragma once
#include <algorithm>
#include <chrono>

#include "lib/node/memory/counters.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {

/// Adaptive spinning: spins only as long as that has paid before.
///
/// Spins about four times as long as was needed lately. If a peer takes longer, it may be waiting for this very CPU, so
/// this rank yields it. A yield that returns at once shows that no other thread wants the CPU, so spinning continues. A
/// slower yield makes the next spin shorter. A yield of a whole time slice has let another thread run; a thread that
/// sleeps and is woken would come before it, so the next waits sleep at once.
class AdaptiveSpin {
 public:
  /// Calls `done` until it returns true or sleeping is cheaper. Returns whether it returned true. `may_spin`: see
  /// `NodeComm::may_spin`.
  template <class Done>
  bool wait(bool may_spin, Done&& done) {
    bool const hurries = asleep_at_once_ > 0;
    int spun = 0;
    if (may_spin && spin(done, hurries ? min_spins : spins_, spun)) return paid(spun);
    if (hurries) {
      --asleep_at_once_;
      return false;
    }
    for (int slow = 0; slow < yields_before_sleep && spun < max_spins;) {
      auto const before = platform::system().now();
      count(counters().yields);
      platform::system().yield();
      auto const took = platform::system().now() - before;
      bool const is_done = done();
      if (took > time_slice) {
        lost_slices_ = std::min(lost_slices_ * 2 + 1, max_lost_slices);
        asleep_at_once_ = lost_slices_;
        spins_ = min_spins;
        return is_done;
      }
      if (!may_spin || took > quick_yield) {
        spins_ = std::max(spins_ / 2, min_spins);
        if (is_done) {
          lost_slices_ = 0;
          return true;
        }
        ++slow;
      } else if (is_done || spin(done, std::max(spun, min_spins), spun)) {
        return paid(spun);
      }
    }
    return false;
  }

 private:
  /// Counts a wait that ended after `spun` polls: moves the limit towards four times as many.
  bool paid(int spun) noexcept {
    lost_slices_ = 0;
    auto const wanted = std::clamp(spun * 4, min_spins, max_spins);
    spins_ = std::clamp(spins_ + (wanted - spins_) / 4, min_spins, max_spins);
    return true;
  }

  // Numbers of polls, about 30 ns each. The limits are one microsecond, for peers that share a CPU after all, and two
  // milliseconds.
  static constexpr int min_spins = 32;
  static constexpr int max_spins = 64'000;
  static constexpr int yields_before_sleep = 4;
  static constexpr auto quick_yield = std::chrono::microseconds(2);  // less than two switches of context
  static constexpr auto time_slice = std::chrono::microseconds(200);
  static constexpr int max_lost_slices = 63;

  static void relax() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  template <class Done>
  static bool spin(Done& done, int times, int& spun) {
    for (int i = 0; i < times; ++i, ++spun) {
      if (done()) return true;
      relax();
    }
    return false;
  }

  int spins_ = 1'000;
  int lost_slices_ = 0;     ///< in a row, and waits that sleep at once after the next
  int asleep_at_once_ = 0;  ///< such waits that are left
};

}  // namespace crossrank::node
