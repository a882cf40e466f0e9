#pragma once
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace crossrank::tools {

/// Returns the error for a first word that is not a subcommand, with the list of subcommands. Empty when the first word
/// is a subcommand or there is no word.
[[nodiscard]] std::string unknown_subcommand(CLI::App& app, std::vector<std::string> const& arguments);

/// Returns "did you mean --tp?", with the known name that is most similar to the first unknown word or option; empty
/// when no name is similar.
[[nodiscard]] std::string suggestion(CLI::App& app, std::vector<std::string> const& arguments);

}  // namespace crossrank::tools
