#pragma once
#include <string>

#include "lib/platform/fd.hpp"

namespace crossrank::tools {

/// Passes what is typed on to one rank. Ranks are no foreground process group: reading the terminal would stop them.
class TerminalInput {
 public:
  /// Makes the pipe; the rank's end goes to `rank_end`.
  explicit TerminalInput(platform::Fd& rank_end);

  /// Whether the terminal is to be watched: it is ours to read and what was read before has gone.
  [[nodiscard]] bool wants_terminal() const noexcept;
  /// Where typed bytes wait to be written, or -1 when none do.
  [[nodiscard]] int blocked_on() const noexcept;
  /// Takes one line from the terminal; the end of input closes the pipe.
  void read_terminal();
  /// Writes what waits as far as there is space.
  void flush();

 private:
  platform::Fd to_rank_;
  std::string waiting_;
};

}  // namespace crossrank::tools
