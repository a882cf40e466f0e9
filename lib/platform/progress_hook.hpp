#pragma once
#include <chrono>
#include <cstddef>

namespace crossrank::platform {

/// Lets a waiting thread advance its other non-blocking calls, because its peers may be waiting for those.
struct ProgressHook {
  /// Advances the calls of the calling thread without waiting. Returns whether it should be called again soon.
  using MakeProgress = bool (*)() noexcept;
  static constexpr std::chrono::nanoseconds longest_nap = std::chrono::microseconds(500);

  /// Sets the function that advances the calls. Call it once, before the first `add`.
  static void set(MakeProgress make_progress) noexcept;
  /// Changes the number of started calls of all threads by `pieces`. While it is 0, `make_progress` costs one load.
  static void add(std::ptrdiff_t pieces) noexcept;
  /// Calls the wait hook, in a wait that has no group. Returns the longest allowed next sleep; a negative value ends
  /// the wait.
  [[nodiscard]] static std::chrono::nanoseconds poll() noexcept;
  /// Advances the calls between two sleeps of a wait. Returns the longest allowed next sleep.
  [[nodiscard]] static std::chrono::nanoseconds make_progress(std::chrono::nanoseconds nap) noexcept;
};

}  // namespace crossrank::platform
