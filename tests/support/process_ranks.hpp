#pragma once
#include <chrono>
#include <csignal>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "tests/support/rank_scenario.hpp"

namespace crossrank::test {

class LeakCheck;

/// A signal that the parent sends while it waits.
struct RankSignal {
  int rank = 0;                        ///< rank that gets it
  int signal = SIGKILL;                ///< number of the signal
  std::chrono::milliseconds after{0};  ///< delay after the start, or after the marker was seen
  std::string marker{};                ///< line to wait for first; empty: none
  int marker_rank = -1;                ///< rank that prints the line; -1: `rank`
};

/// How ranks are started and how long they may run.
struct RankOptions {
  std::chrono::milliseconds deadline{180'000};       ///< wall time after which all ranks are killed
  std::vector<std::string> arguments{};              ///< given to every rank as `RankSelf::arguments`
  std::map<std::string, std::string> environment{};  ///< added to the environment of every rank
  std::map<int, std::map<std::string, std::string>> rank_environment{};  ///< added to the environment of one rank
  std::vector<RankSignal> signals{};                                     ///< sent while the parent waits
  std::string job_id{};                                                  ///< empty: a random one
  bool launcher_variables = true;  ///< set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
};

/// How one rank ended.
struct RankOutcome {
  int exit_code = -1;                    ///< -1 when a signal ended it
  int signal = 0;                        ///< number of that signal, else 0
  bool dumped_core = false;              ///< as the kernel reports it
  std::string out{};                     ///< all of its standard output
  std::string err{};                     ///< all of its standard error
  std::chrono::milliseconds elapsed{0};  ///< from the start of the job to its end, as the parent saw it

  [[nodiscard]] bool ok() const noexcept { return exit_code == 0 && signal == 0; }
};

/// How a job ended.
struct JobOutcome {
  std::vector<RankOutcome> ranks{};
  bool timed_out = false;  ///< the deadline passed, and the ranks that still ran were killed
  std::string job_id{};
  std::vector<std::string> leaks{};  ///< processes and shared memory that outlived the job, one line each

  /// Returns whether every rank returned 0 within the deadline and left nothing behind.
  [[nodiscard]] bool ok() const noexcept;
  /// Returns the outcome of all ranks as text, for the message of a failed assertion.
  [[nodiscard]] std::string text() const;
};

/// A job of several processes. Each is a fresh copy of this test binary and runs one scenario.
///
/// The binary must contain `rank_main.cpp` (use `crossrank_add_rank_test`). Each rank leads a process group, which the
/// destructor kills. The ranks die with the test, however it ends. Not thread-safe.
class ProcessRanks {
 public:
  ProcessRanks(int count, std::string_view scenario, RankOptions options = {});
  ~ProcessRanks();
  ProcessRanks(ProcessRanks const&) = delete;
  ProcessRanks& operator=(ProcessRanks const&) = delete;

  [[nodiscard]] std::string const& job_id() const noexcept;
  [[nodiscard]] pid_t pid(int rank) const;
  /// Returns whether the rank was still running when the parent last looked.
  [[nodiscard]] bool running(int rank) const;
  /// Sends a signal to the rank. Does nothing if it has ended.
  void signal(int rank, int number);
  /// Waits until the rank has printed a line that begins with `marker`. Returns false if it ended or time ran out
  /// first.
  [[nodiscard]] bool wait_for_line(int rank, std::string_view marker,
                                   std::chrono::milliseconds limit = std::chrono::seconds(20));
  /// Waits until the rank has ended. Returns false if time ran out first.
  [[nodiscard]] bool wait_for_exit(int rank, std::chrono::milliseconds limit = std::chrono::seconds(20));
  /// Waits for all ranks until the deadline, kills the remaining ones, and looks for leftovers.
  [[nodiscard]] JobOutcome wait();

 private:
  struct Rank;
  void start(Rank& rank, std::string_view scenario, int number, int count);
  /// Sends due signals and collects output and exits. Sleeps at most `slice` when there is nothing to do.
  void pump(std::chrono::milliseconds slice);
  void send_due_signals();
  void collect_output(Rank& rank);
  void collect_exit(Rank& rank);
  void kill_all() noexcept;

  RankOptions options_;
  std::unique_ptr<LeakCheck> leaks_;
  std::chrono::steady_clock::time_point started_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  struct PendingSignal;
  std::vector<PendingSignal> pending_;
};

/// Starts the job and waits for it.
[[nodiscard]] JobOutcome run_ranks(int count, std::string_view scenario, RankOptions options = {});

}  // namespace crossrank::test
