#include "tools/launch/run_command.hpp"

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "tools/launch/launcher.hpp"

namespace crossrank::tools {
namespace {

constexpr int most_ranks = 4096;  // as many as one group can have

constexpr char const* footer =
    R"(Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and a random CROSSRANK_JOB_ID in its environment.
Standard input goes to rank 0. Lines of output begin with the rank; one longer than 64 KiB is cut into pieces.
SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT and SIGWINCH are passed on; the second signal
that asks for the end kills. After the first failure the other ranks may end by themselves; SIGTERM goes out after half
of the grace time and SIGKILL after all of it. Ranks that wait in connect() hear at once of a rank that ended before it
came there. When the job has failed, all ranks are listed in the order in which they ended, and the root cause is
marked.

Exit code: that of the rank that failed first, 128 + signal when a signal ended it, 127 when the program is not found,
126 when it cannot be run, 0 when all ranks returned 0.)";

}  // namespace

void add_run_command(CLI::App& app, int& exit_code) {
  auto const options = std::make_shared<LaunchOptions>();
  auto const grace = std::make_shared<double>(5.0);
  auto* const run = app.add_subcommand("run", "Run a program as N ranks on this machine");
  run->add_option("-n,--ranks", options->ranks, "Number of ranks")->required()->check(CLI::Range(1, most_ranks));
  run->add_option("--grace", *grace, "Time that ranks have to end after a failure or a signal: 5, 5s, 500ms, 2min")
      ->transform(CLI::AsNumberWithUnit(std::map<std::string, double>{{"ms", 0.001}, {"s", 1.0}, {"min", 60.0}}))
      ->check(CLI::Range(0.0, 86'400.0))
      ->capture_default_str();
  run->add_flag("--prefix,!--no-prefix", options->prefix, "Begin each line of output with \"[rank] \" (default)");
  run->add_option("program", options->program, "Program and its arguments, after --")->required();
  run->positionals_at_end();
  run->footer(footer);
  run->callback([options, grace, &exit_code] {
    options->grace = std::chrono::milliseconds(static_cast<std::int64_t>(*grace * 1000.0));
    exit_code = launch(*options);
  });
}

}  // namespace crossrank::tools
