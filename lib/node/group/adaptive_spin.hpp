#pragma once
#include <algorithm>
#include <chrono>

#include "lib/node/memory/counters.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {

/// Adaptive spinning: spins for as long as that has paid before.
///
/// Spins some four times as long as was needed lately: a peer that takes longer may be waiting for this very CPU, so
/// this yields it. A yield that returns at once says that nobody else wants the CPU, so spinning goes on; one that does
/// not makes the next spin shorter. One that takes as long as a time slice has let somebody else run: who sleeps and is
/// woken comes before such, so the next waits sleep at once.
class AdaptiveSpin {
 public:
  /// Looks at `done` until it holds or sleeping is cheaper. `may_spin` as `NodeComm::may_spin`.
  template <class Done>
  bool wait(bool may_spin, Done&& done) {
    bool const hurries = asleep_at_once_ > 0;
    int spun = 0;
    if (may_spin && spin(done, hurries ? least_spins : spins_, spun)) return paid(spun);
    if (hurries) {
      --asleep_at_once_;
      return false;
    }
    for (int slow = 0; slow < yields_before_sleep && spun < most_spins;) {
      auto const before = platform::system().now();
      count(counters().yields);
      platform::system().yield();
      auto const took = platform::system().now() - before;
      bool const is_done = done();
      if (took > time_slice) {
        lost_slices_ = std::min(lost_slices_ * 2 + 1, most_lost_slices);
        asleep_at_once_ = lost_slices_;
        spins_ = least_spins;
        return is_done;
      }
      if (!may_spin || took > quick_yield) {
        spins_ = std::max(spins_ / 2, least_spins);
        if (is_done) {
          lost_slices_ = 0;
          return true;
        }
        ++slow;
      } else if (is_done || spin(done, std::max(spun, least_spins), spun)) {
        return paid(spun);
      }
    }
    return false;
  }

 private:
  /// So many looks it took: moves the limit towards four times as many.
  bool paid(int spun) noexcept {
    lost_slices_ = 0;
    auto const wanted = std::clamp(spun * 4, least_spins, most_spins);
    spins_ = std::clamp(spins_ + (wanted - spins_) / 4, least_spins, most_spins);
    return true;
  }

  // Looks at the condition, some 30 ns each: from a microsecond, for peers that share a CPU after all, to two
  // milliseconds.
  static constexpr int least_spins = 32;
  static constexpr int most_spins = 64'000;
  static constexpr int yields_before_sleep = 4;
  static constexpr auto quick_yield = std::chrono::microseconds(2);  // less than two switches of context
  static constexpr auto time_slice = std::chrono::microseconds(200);
  static constexpr int most_lost_slices = 63;

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
