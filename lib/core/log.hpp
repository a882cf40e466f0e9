#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include <crossrank/log.hpp>

namespace crossrank {

/// The lowest level that goes to standard error when there is no sink (`CROSSRANK_LOG`).
enum class LogThreshold : std::uint8_t { debug, info, warning, error, off };

inline constexpr auto default_threshold = LogThreshold::warning;

/// Passes an event to the sink. Without a sink, writes a line to standard error if the level reaches `CROSSRANK_LOG`.
/// Costs one relaxed load for an event that is not wanted.
void log_event(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {}) noexcept;

/// Settings of the lines on standard error.
struct LogProcess {
  LogThreshold threshold = default_threshold;
  int rank = -1;  ///< shown in each line; -1: not shown
};

/// Sets the settings from the environment. Before this call, each event reads `CROSSRANK_LOG`.
void set_log_process(LogProcess process) noexcept;

/// Returns the event in one line: "message (key value, key value)". Control characters are escaped.
[[nodiscard]] std::string text_of(LogEvent const& event);

}  // namespace crossrank
