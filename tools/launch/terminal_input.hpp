#pragma once
#include <string>

#include "lib/platform/files/fd.hpp"

namespace crossrank::tools {

/// Forwards terminal input to one rank. Ranks are not in the foreground process group, so reading would stop them.
class TerminalInput {
 public:
  /// Creates the pipe and stores the rank's end in `rank_end`.
  explicit TerminalInput(platform::Fd& rank_end);

  /// Returns whether to poll the terminal: we are in the foreground, and the previous input has been written.
  [[nodiscard]] bool wants_terminal() const noexcept;
  /// Returns the descriptor with pending input, or -1.
  [[nodiscard]] int blocked_on() const noexcept;
  /// Reads one line from the terminal. Closes the pipe at the end of input.
  void read_terminal();
  /// Writes pending input as far as there is space.
  void flush();

 private:
  platform::Fd to_rank_;
  std::string waiting_;
};

}  // namespace crossrank::tools
