#include "tools/cli/size_text.hpp"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdio>

namespace crossrank::tools {

std::string size_text(std::uint64_t bytes) {
  static constexpr std::array<char const*, 6> units{"kB", "MB", "GB", "TB", "PB", "EB"};
  char text[32];
  if (bytes < 1000) {
    std::snprintf(text, sizeof text, "%" PRIu64 " B", bytes);
    return text;
  }
  auto value = static_cast<double>(bytes) / 1000.0;
  std::size_t unit = 0;
  // 999.95 and more would be rounded to 1000.0, so use the next unit.
  while (value >= 999.95 && unit + 1 < units.size()) {
    value /= 1000.0;
    ++unit;
  }
  std::snprintf(text, sizeof text, "%.1f %s", value, units[unit]);
  return text;
}

std::string duration_text(double seconds) {
  auto const whole = static_cast<std::int64_t>(std::ceil(std::clamp(seconds, 0.0, 1e9)));
  char text[48];
  if (whole >= 3600) {
    std::snprintf(text, sizeof text, "%" PRId64 ":%02d:%02d", whole / 3600, static_cast<int>(whole / 60 % 60),
                  static_cast<int>(whole % 60));
  } else {
    std::snprintf(text, sizeof text, "%d:%02d", static_cast<int>(whole / 60), static_cast<int>(whole % 60));
  }
  return text;
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, seconds < 1 ? "%.2f s" : "%.1f s", seconds);
  return text;
}

}  // namespace crossrank::tools
