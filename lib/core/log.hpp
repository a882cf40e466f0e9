#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include <crossrank/log.hpp>

namespace crossrank {

/// From which level on events go to standard error when there is no sink (`CROSSRANK_LOG`).
enum class LogThreshold : std::uint8_t { debug, info, warning, error, off };

inline constexpr auto default_threshold = LogThreshold::warning;

/// Gives an event to the sink. Without one it writes a line to standard error if the level reaches `CROSSRANK_LOG`.
/// Costs one relaxed load when nobody wants the event.
void log_event(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {}) noexcept;

/// What lines on standard error depend on.
struct LogProcess {
  LogThreshold threshold = default_threshold;
  int rank = -1;  ///< named in each line; -1: none
};

/// Sets what the environment says, once it has been read. Until then each event reads `CROSSRANK_LOG` itself.
void set_log_process(LogProcess process) noexcept;

/// The event in one line: "message (key value, key value)". Control characters are escaped.
[[nodiscard]] std::string text_of(LogEvent const& event);

}  // namespace crossrank
