#pragma once
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace crossrank::test {

/// How a command ended.
struct CommandEnd {
  int exit_code = -1;  ///< -1 when a signal or the deadline ended it
  int signal = 0;
  std::string out{};
  std::string err{};
};

/// How the standard streams of the command are created.
enum class Streams : unsigned char {
  pipes,     ///< one pipe each
  terminal,  ///< a new terminal in its own session for all three streams; all output arrives as `out`
};

/// Runs the crossrank command under test. The destructor kills it and all processes that it started.
class CommandRun {
 public:
  explicit CommandRun(std::vector<std::string> const& arguments, Streams streams = Streams::pipes);
  ~CommandRun();
  CommandRun(CommandRun const&) = delete;
  CommandRun& operator=(CommandRun const&) = delete;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  void write(std::string_view text);
  void close_input();
  void signal(int number) const;
  /// Reads until the output contains `text`. Returns false when the command ends or the time runs out before.
  [[nodiscard]] bool wait_for(std::string_view text, std::chrono::milliseconds limit = std::chrono::seconds(20));
  /// Waits until /proc reports `state` for the process ('T': stopped).
  [[nodiscard]] bool wait_for_state(char state) const;
  /// Closes the input and waits for the end.
  [[nodiscard]] CommandEnd finish(std::chrono::milliseconds limit = std::chrono::seconds(30));

 private:
  bool pump(std::chrono::milliseconds slice);
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  int err_ = -1;
  CommandEnd end_{};
};

/// Runs the command to its end with `input`.
[[nodiscard]] CommandEnd run_command(std::vector<std::string> const& arguments, std::string_view input = {});

/// Returns the state of a process from /proc ('R', 'S', 'T', 'Z'); '-' when there is none.
[[nodiscard]] char process_state(pid_t pid);

}  // namespace crossrank::test
