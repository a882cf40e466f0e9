#pragma once
#include <cstdint>
#include <string>

namespace crossrank::tools {

/// "812 B", "1.5 kB", "34.2 GB": powers of 1000, as file sizes are sold.
[[nodiscard]] std::string size_text(std::uint64_t bytes);
/// "0:07", "12:40", "3:05:00".
[[nodiscard]] std::string duration_text(double seconds);
/// "8.4 s", "0.03 s".
[[nodiscard]] std::string seconds_text(double seconds);

}  // namespace crossrank::tools
