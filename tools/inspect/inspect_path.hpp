#pragma once
#include <filesystem>
#include <string>
#include <string_view>

namespace crossrank::tools {

struct InspectPathOptions {
  std::filesystem::path path{};
  std::string match{};  ///< only tensors whose name fits, with * for anything; empty: all
  bool all = false;     ///< list them however many there are
  bool json = false;
};

/// Prints what a file or directory holds. Returns the exit code.
[[nodiscard]] int inspect_path(InspectPathOptions const& options);

/// Whether a name fits a pattern in which * stands for anything.
[[nodiscard]] bool fits_pattern(std::string_view name, std::string_view pattern);

}  // namespace crossrank::tools
