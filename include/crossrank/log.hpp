#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include <crossrank/export.hpp>

namespace crossrank {

/// How serious an event is.
enum class LogLevel : std::uint8_t { debug, info, warning, error };

/// Returns "debug", "info", "warning" or "error". Local, free.
[[nodiscard]] CROSSRANK_EXPORT char const* to_string(LogLevel level) noexcept;

/// A named value of an event.
struct LogField {
  std::string_view key{};    ///< name of the value
  std::string_view value{};  ///< the value as text
};

/// One event. The views are valid during the call of the sink only.
struct LogEvent {
  LogLevel level = LogLevel::info;     ///< how serious it is
  std::string_view message{};          ///< one sentence
  std::span<LogField const> fields{};  ///< what it is about
};

/// Receives the events of this process.
using LogSink = std::function<void(LogEvent const&)>;

/// Sets the receiver of this process's events. An empty function restores the default.
///
/// By default warnings and errors go to standard error, one line each. `CROSSRANK_LOG` sets another level, or `off`. A
/// sink gets every event, and the library then prints nothing.
///
/// Local. The sink is called from any thread, including library threads and destructors; what it throws is dropped.
/// After this function returns, calls of the previous sink that have begun may still be running.
CROSSRANK_EXPORT void set_log_sink(LogSink sink);

}  // namespace crossrank
