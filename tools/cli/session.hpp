#pragma once
#include <functional>
#include <stop_token>
#include <string>
#include <string_view>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>
#include <crossrank/json.hpp>

#include "tools/cli/progress_line.hpp"

namespace crossrank::tools {

/// Options of a command's processes and output.
struct SessionOptions {
  int processes = 1;  ///< processes on this host that share the work
  int threads = 0;    ///< threads of each process; 0: two per CPU of its share of the machine, 2 to 4
  bool json = false;  ///< answer with one JSON object on standard output
  ProgressStyle progress = ProgressStyle::automatic;
};

/// The objects that a command's work uses on each rank.
struct Session {
  Collective const& world;
  std::stop_token stop;
  ProgressLine& progress;
};

/// The result of a command, on rank 0.
struct CommandResult {
  std::string text{};          ///< for standard output
  Json json = Json::object();  ///< for programs
  int exit_code = 0;
};

/// Returns the exit code of the commands for an error of this kind.
[[nodiscard]] int exit_code_of(ErrorCode code);

/// Returns the message for a person at a terminal: what is wrong and where, then the hint on a line of its own, with
/// the flags of `command`.
[[nodiscard]] std::string message_for_user(Error const& error, std::string_view command = {});

/// Prints an error: as one JSON object to standard output, or as text to standard error.
void print_error(std::string const& command, bool json, Error const& error, int exit_code);

/// Runs the work of a command as one process, as `processes` on this host, or as one rank of a job that a launcher has
/// started. Rank 0 prints the result. Returns the exit code; prints errors as one sentence.
///
/// SIGINT, SIGTERM and SIGHUP ask the work to stop. Must be called before the process creates a thread.
[[nodiscard]] int run_session(std::string const& command, SessionOptions const& options,
                              std::function<CommandResult(Session const&)> const& work);

/// Runs the work of a command as one process that does not connect to others, even if a launcher has started several.
/// Otherwise like `run_session`.
[[nodiscard]] int run_alone(std::string const& command, SessionOptions const& options,
                            std::function<CommandResult(Session const&)> const& work);

}  // namespace crossrank::tools
