#pragma once
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace crossrank::tools {

/// For a first word that is no subcommand: says so and lists those that there are. Empty where the first word is one,
/// or there is no word.
[[nodiscard]] std::string unknown_subcommand(CLI::App& app, std::vector<std::string> const& arguments);

/// For arguments that no command took: the name that the first unknown word or option is nearest to, as "did you mean
/// --tp?"; empty when there is none.
[[nodiscard]] std::string suggestion(CLI::App& app, std::vector<std::string> const& arguments);

}  // namespace crossrank::tools
