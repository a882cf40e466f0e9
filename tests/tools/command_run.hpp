#pragma once
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace crossrank::test {

/// How a command ended.
struct CommandEnd {
  int exit_code = -1;  ///< -1 when a signal ended it, or the deadline
  int signal = 0;
  std::string out{};
  std::string err{};
};

/// How the command's standard streams are made.
enum class Streams : unsigned char {
  pipes,     ///< one pipe each
  terminal,  ///< a new terminal, in a session of its own, for all three; everything arrives as `out`
};

/// The crossrank command under test, run as users run it. Killed with all that it started when this object goes.
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
  /// Reads until the output holds `text`; false when it ended or the time ran out.
  [[nodiscard]] bool wait_for(std::string_view text, std::chrono::milliseconds limit = std::chrono::seconds(20));
  /// Waits until the process is in `state` ('T': stopped), as /proc says.
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

/// Runs it to the end with `input`.
[[nodiscard]] CommandEnd run_command(std::vector<std::string> const& arguments, std::string_view input = {});

/// State of a process as /proc says ('R', 'S', 'T', 'Z'); '-' when there is none.
[[nodiscard]] char process_state(pid_t pid);

}  // namespace crossrank::test
