#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include <crossrank/export.hpp>

namespace crossrank {

enum class LogLevel : std::uint8_t { debug, info, warning, error };

/// "debug", "info", "warning", "error". Local, free.
[[nodiscard]] CROSSRANK_EXPORT char const* to_string(LogLevel level) noexcept;

struct LogField {
  std::string_view key{};
  std::string_view value{};
};

/// One thing that happened; the views hold during the call of the sink only.
struct LogEvent {
  LogLevel level = LogLevel::info;
  std::string_view message{};
  std::span<LogField const> fields{};
};

using LogSink = std::function<void(LogEvent const&)>;

/// Sets where the events of this process go. An empty function restores the default.
///
/// By default warnings and errors go to standard error, a line each. `CROSSRANK_LOG` sets another level, or `off`;
/// once a sink is set, it gets every event and the library prints nothing.
/// Local. The sink is called from any thread, library threads and destructors included; what it throws is dropped.
/// After this returns, calls of the former sink that had begun may still be under way.
CROSSRANK_EXPORT void set_log_sink(LogSink sink);

}  // namespace crossrank
