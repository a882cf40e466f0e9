#include "tools/inspect/inspect_command.hpp"

#include <cstdio>
#include <limits>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <crossrank/error.hpp>

#include "lib/core/settings.hpp"
#include "tools/checkpoint/checkpoint_options.hpp"
#include "tools/inspect/inspect_job.hpp"
#include "tools/inspect/inspect_path.hpp"
#include "tools/cli/session.hpp"

namespace crossrank::tools {
namespace {

constexpr char const* inspect_footer =
    R"(With a path: shows the content of a file or directory: tensors with dtypes, shapes and sizes, number formats, grid
and metadata. Reads headers only, no data, and never runs code from a file. For a directory that is not a complete
checkpoint, shows every readable file. Exit code: 0, 1 when a file is damaged, 2 for a usage error, 3 for a system
error.

Without a path: shows what the ranks of this user's running jobs are doing. Only reads their shared memory, so it also
works when they hang. A job that ran with CROSSRANK_FLIGHT_DIR=DIR in its environment can be inspected after its end
too, unless all its ranks exited cleanly. Exit code: 0, 1 when there is no such job, 3 for an error of the system.

With --json, prints one object. With a path: command, ok, exit_code, path, sources: [{name, bytes, attributes, tp, pp,
ep}], tensors: [{name, dtype, shape, bytes, source}], defects: [{resource, text, hint}], and if available grid, config,
quantization or problem; or error. Without a path: command, ok, exit_code and jobs: [{job, host, nonce, where,
running, ranks_here, look_first_at, ranks, groups, queues}]; or error.

Examples:
  crossrank inspect model/
  crossrank inspect shards/rank0.safetensors --match "*down_proj*"
  crossrank inspect model.pth --json | jq '.tensors[] | select(.dtype == "F8_E4M3") | .name'
  crossrank inspect --pid 4711)";

/// The command line.
struct InspectArguments {
  InspectPathOptions path{};
  InspectJobRequest job{};
  std::string job_id{};
  std::string directory{};
  int pid = 0;
  bool json = false;
};

int inspect(InspectArguments& arguments) {
  if (!arguments.path.path.empty()) {
    arguments.path.json = arguments.json;
    return inspect_path(arguments.path);
  }
  try {
    arguments.job.json = arguments.json;
    if (!arguments.job_id.empty()) arguments.job.job = arguments.job_id;
    if (arguments.pid != 0) arguments.job.pid = arguments.pid;
    if (arguments.directory.empty()) arguments.directory = flight_dir_of_environment();
    if (!arguments.directory.empty()) arguments.job.directory = arguments.directory;
    return inspect_jobs(arguments.job);
  } catch (Error const& error) {
    int const exit_code = exit_code_of(error.code());
    print_error("inspect", arguments.json, error, exit_code);
    return exit_code;
  }
}

}  // namespace

void add_inspect_command(CLI::App& app, int& exit_code) {
  auto const arguments = std::make_shared<InspectArguments>();
  auto* const command =
      app.add_subcommand("inspect", "Show the content of a checkpoint, or what the ranks of a job are doing");
  auto* const path =
      command->add_option("path", arguments->path.path, "Checkpoint directory, shard, state image or torch archive");
  command->add_option("--match", arguments->path.match, "Only tensors whose name matches; * matches any text")
      ->type_name("PATTERN")
      ->needs(path);
  add_allow_global(*command, arguments->path.extra_globals)->needs(path);
  command->add_flag("--all", arguments->path.all, "List all tensors, even if there are many")->needs(path);
  auto const of_jobs = [&](CLI::Option* option) { option->excludes(path); };
  of_jobs(command->add_option("--job", arguments->job_id, "Only the job with this id"));
  of_jobs(command->add_option("--pid", arguments->pid, "Only the job of this process")
              ->check(CLI::Range(1, std::numeric_limits<int>::max())));
  of_jobs(command->add_option("--flight", arguments->directory,
                              "Directory of flight records: the job's CROSSRANK_FLIGHT_DIR"));
  of_jobs(command->add_option("--last", arguments->job.last, "Number of operations to show per rank")
              ->check(CLI::Range(0, std::numeric_limits<int>::max()))
              ->capture_default_str());
  command->add_flag("--json", arguments->json, "Print the result as one JSON object");
  command->footer(inspect_footer);
  command->callback([arguments, &exit_code] { exit_code = inspect(*arguments); });
}

}  // namespace crossrank::tools
