#pragma once
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/collective.hpp>

#include "tests/support/timeouts.hpp"
#include "tests/support/process_ranks.hpp"

namespace crossrank::test {

/// How one step of a rank ended, parsed from its output.
struct Verdict {
  std::string
      code{};  ///< "ok", the name of an `ErrorCode`, "foreign" for another exception, empty when none was printed
  std::vector<int> blames{};   ///< the error's failed ranks
  long milliseconds = 0;       ///< duration of the step
  long last_milliseconds = 0;  ///< time since the last `note_progress`
  std::string text{};          ///< `what()`

  /// Returns whether both have the same code and failed ranks. Durations may differ.
  [[nodiscard]] bool same(Verdict const& other) const { return code == other.code && blames == other.blames; }
  [[nodiscard]] bool blames_only(int rank) const { return blames == std::vector<int>{rank}; }
};

/// Runs `body` and prints in one line how it ended. Returns whether it succeeded.
bool say_verdict(RankSelf const& self, std::string_view label, std::function<void()> const& body);
/// Calls `say_verdict` with the label "end". Returns 0, the exit code of a scenario.
int end_with_verdict(RankSelf const& self, std::function<void()> const& body);
/// Returns the verdict that `say_verdict` printed.
[[nodiscard]] Verdict verdict_of(RankOutcome const& outcome, std::string_view label = "end");

/// Records progress of this rank. An error must then come within the timeout and the allowance from here.
void note_progress() noexcept;

/// How late after its timeout a rank may report. On an idle machine a second is enough.
inline constexpr std::chrono::milliseconds allowance = std::chrono::minutes(1);

/// Timeout of the tests that do not expect it to pass.
inline constexpr std::chrono::milliseconds long_timeout = step_timeout;

/// Timeout of the tests that wait for it. A healthy rank makes progress within this time under any load.
inline constexpr std::chrono::milliseconds short_timeout = std::chrono::seconds(6);

/// Expects that all ranks but `victims` ended by themselves with the same verdict, each at most `timeout` plus
/// `allowance` after its last progress. Returns that verdict.
Verdict expect_one_verdict(JobOutcome const& job, std::vector<int> const& victims = {}, std::string_view label = "end",
                           std::chrono::milliseconds timeout = long_timeout);

/// How long after its last progress a rank may report the death of another one. On an idle machine it takes a tenth of
/// a second, and `expect_death_is_told` prints the time. The rest is for a machine with dozens of busy programs, on
/// which each thread waits for its turn.
inline constexpr std::chrono::milliseconds death_limit = std::chrono::seconds(10);

/// Expects that all ranks but `victim` ended by themselves with the same `PeerLostError`, within `death_limit`. It
/// names the victim alone. The ranks call `note_progress` until the victim dies.
void expect_death_is_told(JobOutcome const& job, int victim, std::string_view label = "end");

/// Returns the connect options of these tests. Deaths must be noticed long before `timeout`.
[[nodiscard]] ConnectOptions fault_options(std::chrono::milliseconds timeout = long_timeout);

}  // namespace crossrank::test
