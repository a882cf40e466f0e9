#pragma once
#include <algorithm>
#include <chrono>

#include "lib/node/counters.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {

/// Waiting awake, for as long as that has paid before.
///
/// A yield that returns at once says that nobody else wants this CPU, so spinning goes on; one that does not says that
/// the peer may be waiting for this very CPU, so it goes on sooner the next time. One that takes as long as a time
/// slice has let somebody else run: who sleeps and is woken comes before such, so the next waits sleep at once.
class Awake {
 public:
  /// Looks at `done` until it holds or sleeping is cheaper. `may_spin` as `NodeDomain::may_spin`.
  template <class Done>
  bool wait(bool may_spin, Done&& done) {
    if (may_spin && spin(done, spins_)) {
      spins_ = std::min(spins_ * 2, most_spins);
      return true;
    }
    if (asleep_at_once_ > 0) {
      --asleep_at_once_;
      return false;
    }
    for (int slow = 0, spun = spins_; slow < yields_before_sleep && spun < most_spins;) {
      auto const before = platform::system().now();
      count(counters().yields);
      platform::system().yield();
      auto const took = platform::system().now() - before;
      bool const is_done = done();
      if (took > time_slice) {
        lost_slices_ = std::min(lost_slices_ * 2 + 1, most_lost_slices);
        asleep_at_once_ = lost_slices_;
        return is_done;
      }
      if (is_done) {
        lost_slices_ = 0;
        return true;
      }
      if (!may_spin || took > quick_yield) {
        ++slow;
        spins_ = std::max(spins_ / 2, least_spins);
        continue;
      }
      spins_ = std::min(spins_ * 2, most_spins);
      spun += spins_;
      if (spin(done, spins_)) return true;
    }
    return false;
  }

 private:
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
  static bool spin(Done& done, int times) {
    for (int i = 0; i < times; ++i) {
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
