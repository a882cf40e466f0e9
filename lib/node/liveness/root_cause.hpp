#pragma once
#include <optional>
#include <string>

#include "lib/node/memory/control_layout.hpp"

namespace crossrank::node {

/// The failure that happened first. A rank that gives a group up because of it passes it on to its other groups, so
/// that ranks that never shared a group with the failed rank learn which rank failed.
struct RootCause {
  int global_rank = 0;
  std::string text{};               ///< what happened to that rank
  Verdict verdict = Verdict::lost;  ///< of the group or queue that failed first

  /// Returns for example "rank 3 of the job died 0.1 s ago (pid 4711)".
  [[nodiscard]] std::string sentence() const;
};

/// Returns whether a root cause is set.
[[nodiscard]] bool has_cause(RootCauseRecord const& cause) noexcept;
/// Returns the root cause. Empty while none is set or another thread changes it.
[[nodiscard]] std::optional<RootCause> read_cause(RootCauseRecord const& cause);
/// Sets the root cause unless there is one already. Truncates a text that does not fit.
void set_cause(RootCauseRecord& cause, RootCause const& what) noexcept;
/// Clears the root cause, because the rank has continued since.
void clear_cause(RootCauseRecord& cause) noexcept;

}  // namespace crossrank::node
