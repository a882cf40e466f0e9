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

/// How one step of a rank ended, as the rank printed it.
struct Verdict {
  std::string
      code{};  ///< "ok", the name of an `ErrorCode`, "foreign" for another exception, empty when none was printed
  std::vector<int> blames{};   ///< the error's failed ranks
  long milliseconds = 0;       ///< how long the step took
  long last_milliseconds = 0;  ///< how long its last part took: since `note_progress`
  std::string text{};          ///< `what()`

  /// The same finding; durations apart.
  [[nodiscard]] bool same(Verdict const& other) const { return code == other.code && blames == other.blames; }
  [[nodiscard]] bool blames_only(int rank) const { return blames == std::vector<int>{rank}; }
};

/// Runs `body` and prints on one line how it ended. Returns whether it ended well.
bool say_verdict(RankSelf const& self, std::string_view label, std::function<void()> const& body);
/// The same under the label "end", as what a scenario returns: 0.
int end_with_verdict(RankSelf const& self, std::function<void()> const& body);
/// What `say_verdict` printed.
[[nodiscard]] Verdict verdict_of(RankOutcome const& outcome, std::string_view label = "end");

/// Says that this rank has got on: a failure is to be told of within the timeout and the allowance from here.
void note_progress() noexcept;

/// How long after its timeout a rank may still need to say so: a second, if the machine is idle.
inline constexpr std::chrono::milliseconds allowance = std::chrono::minutes(1);

/// The timeout of these tests when they name none.
inline constexpr std::chrono::milliseconds long_timeout = step_timeout;

/// The timeout of tests that wait for it. A rank that is well makes progress within this time under any load.
inline constexpr std::chrono::milliseconds short_timeout = std::chrono::seconds(6);

/// Expects that all ranks but `victims` ended by themselves with one and the same verdict, each at most `timeout` and
/// `allowance` after it last got on, and returns it.
Verdict expect_one_verdict(JobOutcome const& job, std::vector<int> const& victims = {}, std::string_view label = "end",
                           std::chrono::milliseconds timeout = long_timeout);

/// Options of a job of these tests: deaths must be seen long before `timeout`.
[[nodiscard]] ConnectOptions fault_options(std::chrono::milliseconds timeout = long_timeout);

}  // namespace crossrank::test
