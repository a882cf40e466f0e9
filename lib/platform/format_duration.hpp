#pragma once
#include <chrono>
#include <string>

namespace crossrank::platform {

/// Formats a duration in whole milliseconds: "250 ms", "60000 ms".
[[nodiscard]] inline std::string format_milliseconds(std::chrono::nanoseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(time).count()) + " ms";
}

/// Formats a duration, from 10 s on in whole seconds: "250 ms", "60 s".
[[nodiscard]] inline std::string format_duration(std::chrono::nanoseconds time) {
  if (time < std::chrono::seconds(10)) return format_milliseconds(time);
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

}  // namespace crossrank::platform
