#pragma once
#include <cstdint>
#include <string>

namespace crossrank::tools {

/// Formats a size: "812 B", "1.5 kB", "34.2 GB". Units are powers of 1000.
[[nodiscard]] std::string size_text(std::uint64_t bytes);
/// Formats a duration: "0:07", "12:40", "3:05:00".
[[nodiscard]] std::string duration_text(double seconds);
/// Formats a duration in seconds: "8.4 s", "0.03 s".
[[nodiscard]] std::string seconds_text(double seconds);

}  // namespace crossrank::tools
