#include <crossrank/version.hpp>

#include <cstdio>
#include <exception>

#include <CLI/CLI.hpp>

#include "tools/clean_command.hpp"
#include "tools/consolidate_command.hpp"
#include "tools/convert_command.hpp"
#include "tools/inspect.hpp"
#include "tools/run_command.hpp"
#include "tools/split_command.hpp"
#include "tools/suggestion.hpp"
#include "tools/verify_command.hpp"

int main(int argc, char** argv) {
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
    int const shown = app.exit(error);
    if (shown == 0) return 0;
    auto const near = crossrank::tools::suggestion(app, {argv + 1, argv + argc});
    if (!near.empty()) std::fprintf(stderr, "%s\n", near.c_str());
    return 2;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "crossrank: %s\n", error.what());
    return 1;
  }
  return exit_code;
}
