#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace crossrank::tools {

/// The options of `crossrank run`.
struct LaunchOptions {
  std::string command = "crossrank run";  ///< what the user called, for messages
  std::vector<std::string> program{};     ///< program and arguments; the program is found in PATH
  int ranks = 1;                          ///< number of processes
  std::chrono::milliseconds grace{5000};  ///< time for the other ranks to end after the first failure or a signal
  bool prefix = true;                     ///< "[r] " before each line
  bool raw = false;   ///< forward all bytes unchanged, and rely on the exit codes of the ranks to report failures
  int lost_code = 0;  ///< exit code when an external signal ended a rank; 0: 128 + that signal
  /// Returns the text to print to standard output when the job fails before any rank has written there, from the exit
  /// code and the sentence about the failure; empty: nothing.
  std::function<std::string(int exit_code, std::string const& summary)> if_silent{};
};

/// Runs a program as N ranks on this machine and waits until all processes of the job have ended.
///
/// Returns 0, the exit code of the first rank that failed, 128 + signal when a signal ended it, 127 when the program is
/// not found, or 126 when it cannot be run or the system refuses to start a rank. After the first failure the other
/// ranks have `grace` to end by themselves and report what they saw. After half of it they get SIGTERM, after all of it
/// SIGKILL. Takes over the signals and children of the process, so only one launch may run at a time.
[[nodiscard]] int launch(LaunchOptions const& options);

}  // namespace crossrank::tools
