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

/// One event. Its views are valid only during the call of the sink.
struct LogEvent {
  LogLevel level = LogLevel::info;     ///< how serious it is
  std::string_view message{};          ///< one sentence
  std::span<LogField const> fields{};  ///< named values that belong to it
};

/// Receives the events of this process.
using LogSink = std::function<void(LogEvent const&)>;

/// Sets the receiver of this process's events. An empty function restores the default.
///
/// By default warnings and errors go to standard error, one line each. `CROSSRANK_LOG` sets another level, or `off`. A
/// sink gets every event; the library then prints nothing.
///
/// Local. The sink is called from any thread, including library threads and destructors; its exceptions are ignored.
/// Calls of the previous sink that began earlier may still be running when this function returns.
CROSSRANK_EXPORT void set_log_sink(LogSink sink);

}  // namespace crossrank
