#include "tools/inspect.hpp"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <crossrank/error.hpp>

#include "tools/inspect_job.hpp"

namespace crossrank::tools {
namespace {

/// What was given on the command line.
struct InspectArguments {
  InspectJobRequest job{};
  std::string job_id{};
  std::string directory{};
  int pid = 0;
};

int inspect(InspectArguments& arguments) {
  try {
    if (!arguments.job_id.empty()) arguments.job.job = arguments.job_id;
    if (arguments.pid != 0) arguments.job.pid = arguments.pid;
    auto const* const usual = std::getenv("CROSSRANK_FLIGHT_DIR");
    if (arguments.directory.empty() && usual != nullptr) arguments.directory = usual;
    if (!arguments.directory.empty()) arguments.job.directory = arguments.directory;
    return inspect_jobs(arguments.job);
  } catch (Error const& error) {
    std::fprintf(stderr, "crossrank inspect: %s\n", error.what());
    return 1;
  }
}

}  // namespace

void add_inspect_command(CLI::App& app, int& exit_code) {
  auto const arguments = std::make_shared<InspectArguments>();
  auto* const command = app.add_subcommand("inspect", "Say what the ranks of a job are doing, or did last");
  command->add_option("--job", arguments->job_id, "Only the job with this id");
  command->add_option("--pid", arguments->pid, "Only the job of this process")->check(CLI::PositiveNumber);
  command->add_option("--flight", arguments->directory, "Flight records of dead jobs: CROSSRANK_FLIGHT_DIR of the job");
  command->add_option("--last", arguments->job.last, "Operations shown of each rank")->capture_default_str();
  command->add_flag("--json", arguments->job.json, "Print JSON");
  command->footer(
      "Reads the shared memory of this user's running jobs, however stuck they are, and changes nothing there. A job\n"
      "that ran with CROSSRANK_FLIGHT_DIR=DIR in its environment can be read after its end too, unless all its ranks\n"
      "left in order. Exit code: 0, or 1 when there is no such job.");
  command->callback([arguments, &exit_code] { exit_code = inspect(*arguments); });
}

}  // namespace crossrank::tools
