#include <crossrank/version.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include <crossrank/error.hpp>

#include "lib/core/text/terminal_text.hpp"
#include "tools/inspect/clean_command.hpp"
#include "tools/checkpoint/consolidate_command.hpp"
#include "tools/checkpoint/convert_command.hpp"
#include "tools/inspect/doctor_command.hpp"
#include "tools/inspect/inspect_command.hpp"
#include "tools/launch/run_command.hpp"
#include "tools/cli/bracketed_arguments.hpp"
#include "tools/cli/session.hpp"
#include "tools/cli/standard_streams.hpp"
#include "tools/checkpoint/plan_command.hpp"
#include "tools/checkpoint/split_command.hpp"
#include "tools/cli/suggestion.hpp"
#include "tools/checkpoint/verify_command.hpp"

namespace {

/// Returns whether --json is given. Arguments after "--" belong to another program.
bool wants_json(std::vector<std::string> const& arguments) {
  auto const end = std::find(arguments.begin(), arguments.end(), "--");
  return std::find(arguments.begin(), end, "--json") != end;
}

/// Prints an error that no command has reported, as JSON.
void print_json(std::vector<std::string> const& arguments, crossrank::Error const& error, int exit_code) {
  auto const command = arguments.empty() || arguments.front().starts_with('-') ? std::string() : arguments.front();
  crossrank::tools::print_error(command, true, error, exit_code);
}

/// Makes the text of an error, which may contain arguments, safe for a terminal. Line breaks stay.
std::string safe_lines(std::string const& text) {
  std::istringstream in(text);
  std::string safe;
  for (std::string line; std::getline(in, line);) safe += crossrank::terminal_text(line) + "\n";
  return safe;
}

void add_commands(CLI::App& app, int& exit_code) {
  using namespace crossrank::tools;
  add_run_command(app, exit_code);
  add_clean_command(app, exit_code);
  add_consolidate_command(app, exit_code);
  add_plan_command(app, exit_code);
  add_split_command(app, exit_code);
  add_convert_command(app, exit_code);
  add_verify_command(app, exit_code);
  add_inspect_command(app, exit_code);
  add_doctor_command(app, exit_code);
  unmark_values(app);
}

/// A failed write to standard output is an error.
int flush_output(int exit_code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  std::fprintf(stderr, "crossrank: cannot write to standard output: %s\n", std::strerror(errno));
  return exit_code == 0 ? 3 : exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  crossrank::tools::open_missing_standard_streams();
  std::vector<std::string> const arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  CLI::App app("crossrank: exchange configs and weights between the ranks of a job", "crossrank");
  app.set_version_flag("--version", "crossrank " CROSSRANK_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  try {
    add_commands(app, exit_code);
    auto words = crossrank::tools::mark_bracketed(arguments);
    std::reverse(words.begin(), words.end());  // the order that CLI11 expects
    app.parse(std::move(words));
  } catch (CLI::ParseError const& error) {
    auto const unknown = error.get_exit_code() == 0 ? "" : crossrank::tools::unknown_subcommand(app, arguments);
    if (!unknown.empty()) {
      std::fprintf(stderr, "crossrank: %s\n", crossrank::terminal_text(unknown).c_str());
    } else {
      std::ostringstream out;
      std::ostringstream err;
      int const exit_code_of_parser = app.exit(error, out, err);
      std::fputs(crossrank::tools::unmarked(out.str()).c_str(), stdout);
      std::fputs(safe_lines(crossrank::tools::unmarked(err.str())).c_str(), stderr);
      if (exit_code_of_parser == 0) return flush_output(0);
    }
    auto const near = crossrank::tools::suggestion(app, arguments);
    if (wants_json(arguments))
      print_json(arguments,
                 crossrank::UsageError({.operation = "options",
                                        .message = unknown.empty() ? crossrank::tools::unmarked(error.what()) : unknown,
                                        .hint = near}),
                 2);
    if (!near.empty()) std::fprintf(stderr, "%s\n", near.c_str());
    return flush_output(2);
  } catch (crossrank::Error const& error) {  // such as a malformed variable of the environment
    int const code = crossrank::tools::exit_code_of(error.code());
    auto const command = arguments.empty() ? std::string() : arguments.front();
    crossrank::tools::print_error(command, wants_json(arguments), error, code);
    return flush_output(code);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "crossrank: %s\n", crossrank::terminal_text(error.what()).c_str());
    if (wants_json(arguments))
      print_json(arguments, crossrank::BackendError({.operation = "crossrank", .message = error.what()}), 1);
    return flush_output(1);
  }
  return flush_output(exit_code);
}
