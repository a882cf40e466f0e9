#include "tools/launch/run_command.hpp"

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "tools/cli/option_validators.hpp"
#include "tools/launch/launcher.hpp"

namespace crossrank::tools {
namespace {

constexpr char const* run_footer =
    R"(Sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and a random CROSSRANK_JOB_ID in the environment of each rank.
Standard input goes to rank 0. Each line of output begins with the rank; lines longer than 64 KiB are split.
SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU, SIGTSTP, SIGCONT and SIGWINCH are forwarded; the
second request to end kills the ranks. After the first failure the other ranks may end by themselves; they get SIGTERM after
half of the grace time and SIGKILL after all of it. Ranks that wait in connect() are told at once when a rank ends
before it gets there. If the job fails, the summary lists all ranks in the order in which they ended
and marks the root cause. If a signal to this command ended the job, the summary names it.

Exit code: that of the rank that failed first, 128 + signal when a signal ended it, 127 when the program is not found,
126 when it cannot be run or the system refuses a process, 2 when the limits of this user do not allow that many
processes or open files, 0 when all ranks returned 0.)";

}  // namespace

void add_run_command(CLI::App& app, int& exit_code) {
  auto const options = std::make_shared<LaunchOptions>();
  auto const grace = std::make_shared<double>(5.0);
  auto* const run = app.add_subcommand("run", "Run a program as N ranks on this machine");
  run->add_option("-n,--ranks", options->ranks, "Number of ranks")
      ->required()
      ->type_name("N")
      ->check(CLI::Range(1, max_ranks));
  run->add_option("--grace", *grace, "Time for ranks to end after a failure or a signal: 5, 5s, 500ms, 2m, 1h")
      ->transform(CLI::AsNumberWithUnit(
          std::map<std::string, double>{{"ms", 0.001}, {"s", 1.0}, {"m", 60.0}, {"min", 60.0}, {"h", 3600.0}}))
      ->check(CLI::Range(0.0, 86'400.0))
      ->type_name("TIME")
      ->default_str("5s");
  run->add_flag("--prefix,!--no-prefix", options->prefix, "Prefix each line of output with \"[rank] \" (default)");
  run->add_option("program", options->program, "Program and its arguments, after --")->required();
  run->positionals_at_end();
  run->footer(run_footer);
  run->callback([options, grace, &exit_code] {
    options->grace = std::chrono::milliseconds(static_cast<std::int64_t>(*grace * 1000.0));
    exit_code = launch(*options);
  });
}

}  // namespace crossrank::tools
