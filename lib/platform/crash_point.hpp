#pragma once
#include <atomic>
#include <string>
#include <string_view>
#include <vector>

namespace crossrank::platform {

/// A place where a test can kill the process, named after the step that has just happened ("node.arena.sealed").
///
/// `CROSSRANK_CRASH_POINT` makes one static object for each place. An unarmed point costs one relaxed load.
class CrashPoint {
 public:
  constexpr explicit CrashPoint(char const* name) noexcept : name_(name) {}
  /// Kills the process with SIGKILL if this point is armed and this is the chosen visit.
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

/// Makes the point called `name` kill this process at its `nth` visit, from 1. For tests.
void arm_crash_point(std::string_view name, int nth);
/// Records visits, for the test that proves that each listed point is reachable.
void record_crash_points(bool on);
/// Returns the names visited since `record_crash_points(true)`, sorted, each once.
[[nodiscard]] std::vector<std::string> recorded_crash_points();

}  // namespace crossrank::platform

/// Defines a crash point. The list that the tests use is generated from these lines.
#define CROSSRANK_CRASH_POINT(name)                                 \
  do {                                                              \
    static constinit ::crossrank::platform::CrashPoint point{name}; \
    point.reached();                                                \
  } while (false)
