#pragma once
#include <atomic>
#include <string>
#include <string_view>
#include <vector>

namespace crossrank::platform {

/// A place where a test can end the process, named for what has just happened ("node.arena.sealed").
///
/// One static object for each place, made by `CROSSRANK_CRASH_POINT`. Unarmed it costs one relaxed load.
class CrashPoint {
 public:
  constexpr explicit CrashPoint(char const* name) noexcept : name_(name) {}
  /// Ends the process with SIGKILL when this point is armed and this is the visit asked for.
  void reached() noexcept {
    if (armed_.load(std::memory_order_relaxed)) visit();
  }

 private:
  void visit() noexcept;
  char const* name_;
  static std::atomic<bool> armed_;
  friend void arm_crash_point(std::string_view, int);
  friend void record_crash_points(bool);
};

/// Kills this process at the `nth` visit (from 1) of the point called `name`. Tests only.
void arm_crash_point(std::string_view name, int nth);
/// Counts visits instead of dying, for the test that proves that each listed point is reachable.
void record_crash_points(bool on);
/// Names visited since `record_crash_points(true)`, sorted, each once.
[[nodiscard]] std::vector<std::string> recorded_crash_points();

}  // namespace crossrank::platform

/// Names a crash point at this place; the list that tests walk is generated from these lines.
#define CROSSRANK_CRASH_POINT(name)                                 \
  do {                                                              \
    static constinit ::crossrank::platform::CrashPoint point{name}; \
    point.reached();                                                \
  } while (false)
