#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace crossrank::tools {

/// What `crossrank run` is asked to do.
struct LaunchOptions {
  std::vector<std::string> program{};     ///< program and arguments; the program is found in PATH
  int ranks = 1;                          ///< how many copies
  std::chrono::milliseconds grace{5000};  ///< time that the others have to end after the first failure or a signal
  bool prefix = true;                     ///< "[r] " before each line
  bool raw = false;  ///< pass all bytes on as they come, and leave it to the ranks to tell how they ended by exit codes
  int lost_code = 0;  ///< returned when a signal that is not ours ended a rank; 0: 128 + that signal
  /// What to write to standard output when the job fails and no rank has written there, from the exit code and the
  /// sentence about the failure; empty: nothing.
  std::function<std::string(int exit_code, std::string const& summary)> if_silent{};
};

/// Runs one program as N ranks on this machine and waits for all of it to end.
///
/// Returns what `crossrank run` returns: 0, the exit code of the first rank that failed, 128 + signal when a signal
/// ended it, 127 when the program is not found, 126 when it cannot be run or the system refuses to start a rank. After
/// the first failure the others have `grace` to end by themselves, so that they can say what they saw; SIGTERM goes to
/// those that remain after half of it, SIGKILL after all of it. When it returns no process of the job is left. One
/// launch at a time: it takes over the process's signals and children.
[[nodiscard]] int launch(LaunchOptions const& options);

}  // namespace crossrank::tools
