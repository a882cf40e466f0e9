#pragma once
#include <chrono>

/// How long tests wait for what must happen.
///
/// These limits only end a hang: a machine under a load of fifty stays far below them, and so does a sanitizer. A test
/// that measures time compares it with nothing smaller.
namespace crossrank::test {

/// For one step: a line that a rank prints, the end of a process, ranks that meet.
inline constexpr std::chrono::milliseconds step_timeout = std::chrono::minutes(5);

/// For a whole job of processes or threads.
inline constexpr std::chrono::milliseconds job_timeout = std::chrono::minutes(15);

/// A limit that a test names for an idle machine, scaled_timeout for a busy one.
[[nodiscard]] constexpr std::chrono::milliseconds scaled_timeout(std::chrono::milliseconds limit) noexcept {
  return limit * 10;
}

}  // namespace crossrank::test
