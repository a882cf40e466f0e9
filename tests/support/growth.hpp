#pragma once
#include <algorithm>
#include <ctime>

/// Measures how the cost of a function grows with the size of its input.
namespace crossrank::test {

/// Returns the processor time of this thread, which does not depend on what else the machine does.
inline double thread_seconds() {
  std::timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Returns how much longer `work(keys)` takes for eight times as many keys: about 8 if it is linear, 64 if quadratic.
template <class Work>
double growth(Work const& work, int few = 4'000) {
  auto const measure = [&](int keys) {
    auto const begin = thread_seconds();
    work(keys);
    return thread_seconds() - begin;
  };
  double const base = std::max(measure(few), measure(few));
  return measure(8 * few) / base;
}

inline constexpr double max_growth = 24;

}  // namespace crossrank::test
