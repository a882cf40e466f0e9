#pragma once
#include <optional>
#include <string>

#include "lib/node/memory/control_layout.hpp"

namespace crossrank::node {

/// What failed first. A rank that gives a group up because of it hands it on with its other groups, so that ranks which
/// never shared a group with the failed rank learn whom to blame.
struct RootCause {
  int global_rank = 0;
  std::string text{};  ///< what happened to that rank

  /// "rank 3 of the job died 0.1 s ago (pid 4711)".
  [[nodiscard]] std::string sentence() const;
};

/// Nothing while none is set, or it is being set.
[[nodiscard]] std::optional<RootCause> read_cause(RootCauseRecord const& cause);
/// Sets it unless it is set: the first one counts. Text that does not fit is cut.
void set_cause(RootCauseRecord& cause, RootCause const& what) noexcept;
/// Makes it unset: the rank has gone on since.
void clear_cause(RootCauseRecord& cause) noexcept;

}  // namespace crossrank::node
