#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/environment.hpp"
#include "lib/core/variable_reader.hpp"

namespace crossrank {

/// An environment variable of crossrank. The parser, the warning about unknown names and the table in docs/SETTINGS.md
/// use the same list of settings.
struct Setting {
  char const* name = "";
  std::string_view description{};   ///< text in docs/SETTINGS.md
  std::string_view default_text{};  ///< text in docs/SETTINGS.md: the value without the variable
  void (*read)(VariableReader const& reader, char const* name, Environment& out) = nullptr;
};

/// Returns all variables that begin with CROSSRANK_ and that the library reads.
[[nodiscard]] std::span<Setting const> settings() noexcept;

/// Returns the value of an environment variable, or nothing when it is not set.
[[nodiscard]] std::optional<std::string> variable_of_process(char const* name);

/// Reads only `CROSSRANK_LOG`, for events before `environment()`. Returns the default for a malformed value.
[[nodiscard]] LogThreshold threshold_of_environment() noexcept;

/// Reads only `CROSSRANK_FLIGHT_DIR`, for a command that must work even if other variables are malformed. Returns an
/// empty text when it is not set.
[[nodiscard]] std::string flight_dir_of_environment();

/// A variable with crossrank's prefix that is not a setting.
struct UnknownSetting {
  std::string name{};
  std::string nearest{};  ///< the setting that is most likely meant; may be empty
};

/// Returns the names with crossrank's prefix that are not settings, except the variables of the build and the tests.
[[nodiscard]] std::vector<UnknownSetting> unknown_settings(std::vector<std::string> const& names);

/// Logs a warning for each unknown setting in this process's environment, at the first call only.
void warn_of_unknown_settings();

}  // namespace crossrank
