#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace crossrank::tools {

/// How one rank ended.
struct RankExit {
  int rank = 0;
  pid_t pid = 0;
  int status = 0;                      ///< as returned by `waitpid`
  std::chrono::milliseconds after{0};  ///< since the start of the job
  bool by_launcher = false;            ///< ended by a signal that the launcher sent or forwarded
  bool before_connect = false;         ///< other ranks waited for it in `connect()`, but it never arrived there
  std::optional<int> caused_by{};      ///< the rank whose failure it followed, according to its own record
};

/// Finds the rank that failed first.
///
/// The order of exit alone would be misleading. When a killed rank has to free much memory, its exit is seen after its
/// peers have noticed and exited with an error. Therefore an external signal takes precedence over an exit code.
/// SIGABRT does not, because a program that does not catch an error about its peer ends that way. Signals that the
/// launcher sent come last. The records of the ranks take precedence over all this: a rank for which others waited in
/// vain in `connect()` is the cause, even if it returned 0, and a rank that followed another rank's failure is not.
class JobOutcome {
 public:
  /// Adds an end. Must be called in order of time.
  void add(RankExit const& end);
  /// Notes that the user or a scheduler asked the job to end, by a signal to the launcher. Has no effect once a rank
  /// has failed.
  void end_requested(int signal) noexcept;
  /// Returns that signal; 0: none.
  [[nodiscard]] int requested_by() const noexcept { return requested_by_; }
  /// Calls `note` for each end, to add information that arrived later.
  void annotate(std::function<void(RankExit&)> const& note);

  [[nodiscard]] bool failed() const noexcept;
  [[nodiscard]] bool failed(int rank) const noexcept;
  /// Returns whether the first failure was an exit code, which the rank itself has explained.
  [[nodiscard]] bool by_exit_code() const noexcept;
  /// Returns whether the rank that failed first was ended by a signal that the launcher neither sent nor forwarded.
  [[nodiscard]] bool by_external_signal() const noexcept;
  /// Returns 0, the exit code of the rank that failed first, or 128 + the signal that ended it.
  [[nodiscard]] int exit_code() const noexcept;
  /// Returns the exit code 128 + n of a rank that says by it that signal n, not SIGINT, has ended its work.
  [[nodiscard]] std::optional<int> code_of_signal() const noexcept;
  /// Lists all ranks in the order in which they ended and marks the root cause, or names the signal that ended the job;
  /// empty when no rank failed.
  [[nodiscard]] std::string summary() const;

 private:
  [[nodiscard]] RankExit const* first_failure() const noexcept;
  [[nodiscard]] RankExit const* cause() const noexcept;
  [[nodiscard]] RankExit const* exit_of(int rank) const noexcept;
  /// Returns the failure that determines the exit code of the job.
  [[nodiscard]] RankExit const* deciding() const noexcept;

  std::vector<RankExit> exits_{};
  int requested_by_ = 0;  ///< signal of the request to end; 0: none
};

}  // namespace crossrank::tools
