#pragma once
#include <chrono>
#include <cstddef>

namespace crossrank::platform {

/// Calls that a thread has started and does not wait for at the moment may be what its peers wait for: while it waits
/// for something else, it carries them on.
struct ProgressHook {
  /// Carries on what the calling thread has started, without waiting; whether it is to be called again soon.
  using MakeProgress = bool (*)() noexcept;
  static constexpr std::chrono::nanoseconds longest_nap = std::chrono::microseconds(500);

  /// Says how, once, before the first `add`.
  static void set(MakeProgress make_progress) noexcept;
  /// Counts what has been started, by any thread: without any, `make_progress` costs one load.
  static void add(std::ptrdiff_t pieces) noexcept;
  /// To be called between two naps of a wait: how long the next one may be at most.
  [[nodiscard]] static std::chrono::nanoseconds make_progress(std::chrono::nanoseconds nap) noexcept;
};

}  // namespace crossrank::platform
