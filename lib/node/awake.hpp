#pragma once
#include <algorithm>
#include <chrono>

#include "lib/node/counters.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {

/// Waiting awake, for as long as that has paid before.
///
/// A yield that returns at once says that nobody else wants this CPU, so spinning goes on; one that does not says that
/// the peer may be waiting for this very CPU, so it goes on sooner the next time.
class Awake {
 public:
  /// Looks at `done` until it holds or sleeping is cheaper. `may_spin` as `NodeDomain::may_spin`.
  template <class Done>
  bool wait(bool may_spin, Done&& done) {
    if (may_spin && spin(done, spins_)) {
      spins_ = std::min(spins_ * 2, most_spins);
      return true;
    }
    for (int slow = 0, spun = spins_; slow < yields_before_sleep && spun < most_spins;) {
      auto const before = platform::system().now();
      count(counters().yields);
      platform::system().yield();
      if (done()) return true;
      if (!may_spin || platform::system().now() - before > quick_yield) {
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
};

}  // namespace crossrank::node
