#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "errors.hpp"

namespace crossrank::python {

/// Returns the value with this name. `UsageError` lists the names.
template <class Value, std::size_t Count>
[[nodiscard]] Value named(std::pair<char const*, Value> const (&values)[Count], char const* what,
                          std::string_view name) {
  std::string known;
  for (auto const& [each, value] : values) {
    if (name == each) return value;
    known += (known.empty() ? "" : ", ") + std::string(each);
  }
  refuse(what, "there is no such option", known, std::string(name));
}

/// Returns a time in seconds as milliseconds, rounded up. An error calls it `name`.
[[nodiscard]] inline std::chrono::milliseconds milliseconds_of(double seconds, char const* name = "timeout") {
  constexpr double max = 3e9;  // as nanoseconds, a time from now fits in 64 bits
  if (!(seconds >= 0)) refuse(name, "the time is negative or not a number", "at least 0", std::to_string(seconds));
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::min(seconds, max) * 1e3 + 0.999));
}

/// Does the same for an optional time.
[[nodiscard]] inline std::optional<std::chrono::milliseconds> milliseconds_of(std::optional<double> seconds,
                                                                              char const* name = "timeout") {
  if (!seconds) return std::nullopt;
  return milliseconds_of(*seconds, name);
}

}  // namespace crossrank::python
