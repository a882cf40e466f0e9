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
  int status = 0;                      ///< as `waitpid` gives it
  std::chrono::milliseconds after{0};  ///< since the start of the job
  bool by_launcher = false;            ///< ended by a signal that the launcher itself had sent or passed on
  bool before_connect = false;         ///< other ranks waited for it in `connect()`, to which it never came
  std::optional<int> caused_by{};      ///< the rank whose failure it followed, as it said itself
};

/// Finds the rank that failed first among all ranks that ended.
///
/// Order of arrival alone would mislead: a rank that is killed is seen late when much memory has to be given back,
/// after its peers have noticed and left with an error. So a signal from elsewhere goes before an exit code; but not
/// SIGABRT, which is how a program ends that does not catch the error about its peer. Signals of the launcher come
/// last. What the ranks know goes before all that: a rank that others waited for in vain in `connect()` is the cause,
/// also when it returned 0, and one that says whose failure it followed is not.
class JobOutcome {
 public:
  /// In order of time.
  void add(RankExit const& end);
  /// Lets `note` add to each end what was learnt later.
  void annotate(std::function<void(RankExit&)> const& note);

  [[nodiscard]] bool failed() const noexcept;
  /// Whether the first failure was an exit code, which the rank itself has explained.
  [[nodiscard]] bool by_exit_code() const noexcept;
  /// Whether a signal that the launcher neither sent nor passed on ended the rank that failed first.
  [[nodiscard]] bool by_external_signal() const noexcept;
  /// 0, the exit code of the rank that failed first, or 128 + the signal that ended it.
  [[nodiscard]] int exit_code() const noexcept;
  /// All ranks that ended, in order of time, and which of them is the root cause; empty when none failed.
  [[nodiscard]] std::string summary() const;

 private:
  [[nodiscard]] RankExit const* first_failure() const noexcept;
  [[nodiscard]] RankExit const* cause() const noexcept;
  [[nodiscard]] RankExit const* exit_of(int rank) const noexcept;
  /// The failure whose code the job returns.
  [[nodiscard]] RankExit const* deciding() const noexcept;

  std::vector<RankExit> exits_{};
};

}  // namespace crossrank::tools
