#include <crossrank/version.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <crossrank/error.hpp>
#include <crossrank/json.hpp>

#include "tools/clean_command.hpp"
#include "tools/consolidate_command.hpp"
#include "tools/convert_command.hpp"
#include "tools/inspect.hpp"
#include "tools/run_command.hpp"
#include "tools/split_command.hpp"
#include "tools/suggestion.hpp"
#include "tools/verify_command.hpp"

namespace {

/// Arguments that no command took, told as `--json` asks.
void print_refusal(std::vector<std::string> const& arguments, std::string const& why, std::string const& near) {
  crossrank::UsageError const refusal({.operation = "options", .message = why, .remedy = near});
  auto const command = arguments.empty() || arguments.front().starts_with('-') ? std::string() : arguments.front();
  crossrank::Json const answer{{"command", command}, {"ok", false}, {"exit_code", 2}, {"error", refusal.to_json()}};
  std::printf("%s\n", answer.dump(-1, ' ', false, crossrank::Json::error_handler_t::replace).c_str());
}

/// What could not be said is no success.
int said(int exit_code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  std::fprintf(stderr, "crossrank: the answer could not be written to standard output: %s\n", std::strerror(errno));
  return exit_code == 0 ? 3 : exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> const arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  CLI::App app("crossrank: configs and weights between the ranks of one job", "crossrank");
  app.set_version_flag("--version", "crossrank " CROSSRANK_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  try {
    crossrank::tools::add_run_command(app, exit_code);
    crossrank::tools::add_clean_command(app, exit_code);
    crossrank::tools::add_consolidate_command(app, exit_code);
    crossrank::tools::add_split_command(app, exit_code);
    crossrank::tools::add_convert_command(app, exit_code);
    crossrank::tools::add_verify_command(app, exit_code);
    crossrank::tools::add_inspect_command(app, exit_code);
    app.parse(argc, argv);
  } catch (CLI::ParseError const& error) {
    auto const unknown = error.get_exit_code() == 0 ? "" : crossrank::tools::unknown_subcommand(app, arguments);
    if (!unknown.empty()) {
      std::fprintf(stderr, "crossrank: %s\n", unknown.c_str());
    } else if (app.exit(error) == 0) {
      return said(0);
    }
    auto const near = crossrank::tools::suggestion(app, arguments);
    // Behind "--" stand another program's arguments.
    auto const end = std::find(arguments.begin(), arguments.end(), "--");
    if (std::find(arguments.begin(), end, "--json") != end)
      print_refusal(arguments, unknown.empty() ? error.what() : unknown, near);
    if (!near.empty()) std::fprintf(stderr, "%s\n", near.c_str());
    return 2;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "crossrank: %s\n", error.what());
    return 1;
  }
  return said(exit_code);
}
