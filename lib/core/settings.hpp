#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/environment.hpp"
#include "lib/core/variable_reader.hpp"

namespace crossrank {

/// A variable of the environment that belongs to crossrank: one row of the table that the parser, the warning about
/// unknown names and the table in docs/SETTINGS.md share.
struct Setting {
  char const* name = "";
  std::string_view description{};   ///< in docs/SETTINGS.md; empty for what only `crossrank run` sets for its ranks
  std::string_view default_text{};  ///< in docs/SETTINGS.md: the value without the variable
  void (*read)(VariableReader const& reader, char const* name, Environment& out) = nullptr;
};

/// All variables that begin with CROSSRANK_ and that the library reads.
[[nodiscard]] std::span<Setting const> settings() noexcept;

/// The value of a variable of this process, or nothing when it is not set.
[[nodiscard]] std::optional<std::string> variable_of_process(char const* name);

/// Reads `CROSSRANK_LOG` alone, for events that come before `environment()`. A malformed one counts as the default.
[[nodiscard]] LogThreshold threshold_of_environment() noexcept;

/// Reads `CROSSRANK_FLIGHT_DIR` alone, for a command that works whatever the other variables say. Returns an empty text
/// when it is not set.
[[nodiscard]] std::string flight_dir_of_environment();

/// A variable that begins like one of crossrank's and is none.
struct UnknownSetting {
  std::string name{};
  std::string nearest{};  ///< the setting that is most likely meant; empty when none is near
};

/// Returns the names that look like settings of crossrank and are none. Leaves out those of the build and the tests.
[[nodiscard]] std::vector<UnknownSetting> unknown_settings(std::vector<std::string> const& names);

/// Logs a warning for each unknown setting in this process's environment, at the first call only.
void warn_of_unknown_settings();

}  // namespace crossrank
