#include "tools/cli/bracketed_arguments.hpp"

#include <utility>

#include <CLI/CLI.hpp>

namespace crossrank::tools {
namespace {

constexpr char mark = '\x1f';

}  // namespace

std::vector<std::string> mark_bracketed(std::vector<std::string> arguments) {
  for (auto& argument : arguments) {
    if (argument.starts_with('[') && argument.ends_with(']')) argument.insert(argument.begin(), mark);
  }
  return arguments;
}

std::string unmarked(std::string text) {
  for (auto at = text.find(std::string{mark, '['}); at != std::string::npos; at = text.find(std::string{mark, '['}, at))
    text.erase(at, 1);
  return text;
}

void unmark_values(CLI::App& app) {
  auto const unmark = [](std::string& value) {
    if (value.starts_with(mark)) value.erase(0, 1);
    return std::string();
  };
  for (auto* const command : app.get_subcommands({})) {
    for (auto* const option : command->get_options()) {
      if (option->get_items_expected_max() > 0) option->transform(CLI::Validator(unmark, "", "unmark"));
    }
  }
}

}  // namespace crossrank::tools
