#pragma once
#include <chrono>

/// How long tests wait for what must happen.
///
/// These limits only end a hang. A machine with a load average of 50 stays far below them, and so does a
/// sanitizer. A test that measures time compares it with nothing smaller.
namespace crossrank::test {

/// Limit for one step: a line that a rank prints, the end of a process, a barrier.
inline constexpr std::chrono::milliseconds step_timeout = std::chrono::minutes(5);

/// Limit for a whole job of processes or threads.
inline constexpr std::chrono::milliseconds job_timeout = std::chrono::minutes(15);

/// Scales a limit that a test chose for an idle machine to one for a busy machine.
[[nodiscard]] constexpr std::chrono::milliseconds scaled_timeout(std::chrono::milliseconds limit) noexcept {
  return limit * 10;
}

}  // namespace crossrank::test
