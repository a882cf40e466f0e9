#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "tests/tools/command_run.hpp"

namespace crossrank::test {

/// Runs an example of the build to its end under `crossrank run` with `ranks` ranks.
[[nodiscard]] CommandEnd run_example(int ranks, std::string const& name,
                                     std::vector<std::string> const& arguments = {});

/// Returns the content of a file.
[[nodiscard]] std::string contents(std::filesystem::path const& path);

/// Returns the sorted names in a directory; empty when the directory does not exist.
[[nodiscard]] std::vector<std::string> names_in(std::filesystem::path const& directory);

}  // namespace crossrank::test
