#pragma once
#include <functional>
#include <stop_token>
#include <string>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>
#include <crossrank/json.hpp>

#include "tools/checkpoint/checkpoint_options.hpp"
#include "tools/cli/progress_line.hpp"

namespace crossrank::tools {

/// What a command's work has at hand on each rank.
struct Session {
  Collective const& world;
  std::stop_token stop;
  ProgressLine& progress;
};

/// What came out, on rank 0.
struct CommandResult {
  std::string text{};          ///< for people, on standard output
  Json json = Json::object();  ///< for programs
  int exit_code = 0;
};

/// What commands return for an error of this kind.
[[nodiscard]] int exit_code_of(ErrorCode code);

/// What a person at a terminal needs: the finding, where, and on a line of its own what to do.
[[nodiscard]] std::string message_for_user(Error const& error);

/// Reports an error: as one JSON object on standard output, or for people on standard error.
void print_error(std::string const& command, bool json, Error const& error, int exit_code);

/// Runs the work of a command as one process, as `processes` of this host, or as one rank of the job that a launcher
/// has started, and says on rank 0 what came out. Returns the exit code; errors become one sentence and theirs.
///
/// SIGINT and the like ask the work to stop. To be called before the process has made any thread.
[[nodiscard]] int run_session(std::string const& command, SessionOptions const& options,
                              std::function<CommandResult(Session const&)> const& work);

}  // namespace crossrank::tools
