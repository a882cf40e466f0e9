#pragma once
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace crossrank::tools {

/// Returns the arguments with a mark before each that is in brackets. CLI11 takes "[a,b]" for two values of an option
/// that may have several, but a file can have that name, and a program can expect that argument.
[[nodiscard]] std::vector<std::string> mark_bracketed(std::vector<std::string> arguments);

/// Lets all options of the subcommands remove the marks from their values.
void unmark_values(CLI::App& app);

/// Returns a text, such as a message of CLI11, without marks.
[[nodiscard]] std::string unmarked(std::string text);

}  // namespace crossrank::tools
