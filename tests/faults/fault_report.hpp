#pragma once
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/collective.hpp>

#include "tests/support/process_ranks.hpp"

namespace crossrank::test {

/// How one step of a rank ended, as the rank printed it.
struct Verdict {
  std::string
      code{};  ///< "ok", the name of an `ErrorCode`, "foreign" for another exception, empty when none was printed
  std::vector<int> blames{};  ///< the error's culprits
  long milliseconds = 0;      ///< how long the step took
  std::string text{};         ///< `what()`

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

/// Expects that all ranks but `victims` ended by themselves with one and the same verdict, and returns it.
Verdict expect_one_verdict(JobOutcome const& job, std::vector<int> const& victims = {}, std::string_view label = "end");

/// Options of a job of these tests: deaths must be seen long before `timeout`.
[[nodiscard]] ConnectOptions fault_options(std::chrono::milliseconds timeout = std::chrono::seconds(30));

}  // namespace crossrank::test
