#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "tests/tools/command_run.hpp"

namespace crossrank::test {

/// Runs an example of the build to its end, under `crossrank run` with that many ranks.
[[nodiscard]] CommandEnd run_example(int ranks, std::string const& name,
                                     std::vector<std::string> const& arguments = {});

/// All of a file.
[[nodiscard]] std::string contents(std::filesystem::path const& path);

/// Names in a directory, sorted; none when there is no such directory.
[[nodiscard]] std::vector<std::string> names_in(std::filesystem::path const& directory);

}  // namespace crossrank::test
