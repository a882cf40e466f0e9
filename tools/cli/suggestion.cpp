#include "tools/cli/suggestion.hpp"

#include <algorithm>
#include <cstddef>

#include <CLI/CLI.hpp>

#include "lib/core/text/nearest_name.hpp"

namespace crossrank::tools {
namespace {

std::vector<std::string> commands_of(CLI::App& app) {
  std::vector<std::string> names;
  for (auto const* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> options_of(CLI::App& command) {
  std::vector<std::string> names;
  for (auto const* option : command.get_options()) {
    for (auto const& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::string near(std::string const& wanted, std::vector<std::string> const& names) {
  if (std::find(names.begin(), names.end(), wanted) != names.end()) return {};
  return did_you_mean(wanted, names);
}

/// Returns the first argument that is not an option.
std::vector<std::string>::const_iterator first_word(std::vector<std::string> const& arguments) {
  return std::find_if(arguments.begin(), arguments.end(),
                      [](auto const& text) { return text.empty() || text[0] != '-'; });
}

}  // namespace

std::string unknown_subcommand(CLI::App& app, std::vector<std::string> const& arguments) {
  auto const word = first_word(arguments);
  if (word == arguments.end()) return {};
  auto const known = commands_of(app);
  if (std::find(known.begin(), known.end(), *word) != known.end()) return {};
  auto text = "unknown subcommand \"" + *word + "\"; the subcommands are ";
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (i != 0) text += i + 1 == known.size() ? " and " : ", ";
    text += known[i];
  }
  return text;
}

std::string suggestion(CLI::App& app, std::vector<std::string> const& arguments) {
  auto const word = first_word(arguments);
  if (word == arguments.end()) return {};
  auto const commands = app.get_subcommands({});
  auto const command =
      std::find_if(commands.begin(), commands.end(), [&](auto const* known) { return known->get_name() == *word; });
  if (command == commands.end()) return near(*word, commands_of(app));
  auto const options = options_of(**command);
  for (auto const& argument : arguments) {
    if (!argument.starts_with("--")) continue;
    auto text = near(argument.substr(0, argument.find('=')), options);
    if (!text.empty()) return text;
  }
  return {};
}

}  // namespace crossrank::tools
