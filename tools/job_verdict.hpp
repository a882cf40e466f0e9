#pragma once
#include <chrono>
#include <optional>
#include <string>

#include <sys/types.h>

namespace crossrank::tools {

/// How one rank ended.
struct RankEnd {
  int rank = 0;
  pid_t pid = 0;
  int status = 0;                      ///< as `waitpid` gives it
  std::chrono::milliseconds after{0};  ///< since the start of the job
  bool asked = false;                  ///< ended by a signal that the launcher itself had sent or passed on
};

/// Finds the rank that failed first among those that failed with it.
///
/// Order of arrival alone would mislead: a rank that is killed is seen late when much memory has to be given back,
/// after its peers have noticed and left with an error. So a signal from elsewhere goes before an exit code; but not
/// SIGABRT, which is how a program ends that does not catch the error about its peer. Signals of the launcher come
/// last.
class JobVerdict {
 public:
  void add(RankEnd const& end);
  [[nodiscard]] bool failed() const noexcept { return cause_.has_value(); }
  /// Whether the first failure was an exit code, which the rank itself has explained.
  [[nodiscard]] bool by_exit_code() const noexcept;
  /// Whether a signal that the launcher neither sent nor passed on ended the rank that failed first.
  [[nodiscard]] bool by_foreign_signal() const noexcept;
  /// 0, the exit code of the rank that failed first, or 128 + the signal that ended it.
  [[nodiscard]] int exit_code() const noexcept;
  /// Which rank failed how and when, and how many others did; empty when none failed.
  [[nodiscard]] std::string sentence() const;

 private:
  std::optional<RankEnd> cause_{};
  int failures_ = 0;
  int asked_ = 0;
};

}  // namespace crossrank::tools
