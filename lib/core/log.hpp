#pragma once
#include <initializer_list>
#include <string_view>

#include <crossrank/log.hpp>

namespace crossrank {

/// Gives an event to the sink, if there is one. Costs one relaxed load when there is none.
void log_event(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {}) noexcept;

}  // namespace crossrank
