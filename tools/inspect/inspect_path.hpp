#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace crossrank::tools {

struct InspectPathOptions {
  std::filesystem::path path{};
  std::string match{};                       ///< show only tensors whose name matches; * matches any text; empty: all
  std::vector<std::string> extra_globals{};  ///< classes that torch archives may mention besides the known ones
  bool all = false;                          ///< list all tensors, even if there are many
  bool json = false;
};

/// Prints the content of a file or directory. Returns the exit code.
[[nodiscard]] int inspect_path(InspectPathOptions const& options);

/// Returns whether a name matches a pattern in which * matches any text.
[[nodiscard]] bool fits_pattern(std::string_view name, std::string_view pattern);

}  // namespace crossrank::tools
