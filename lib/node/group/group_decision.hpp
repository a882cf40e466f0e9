#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lib/node/group/atomic_ops.hpp"
#include "lib/node/group/group_members.hpp"
#include "lib/node/liveness/root_cause.hpp"
#include "lib/node/memory/decision.hpp"

namespace crossrank::node {

/// Why a group fails.
struct Blame {
  Verdict verdict = Verdict::aborted;
  std::vector<int> members{};        ///< to blame, at least one
  std::string text{};                ///< message of the errors that all members throw
  std::string status{};              ///< what happened to the first of `members`, for ranks of other groups
  std::vector<int> awaited{};        ///< members that did not arrive, if others are to blame; empty: `members`
  std::optional<RootCause> cause{};  ///< why `members` are slow; empty: the first cause that one of them has noted
};

/// Whether a group has failed, by whose decision, and why.
///
/// The decision is one word in the group's header, set once. The deciding member has written the reason into its own
/// block before, so all members throw the same error.
class GroupDecision {
 public:
  explicit GroupDecision(GroupMembers const& members) noexcept : members_(members), word_(members.header().decision) {}

  /// Returns whether the group has failed: by a decision, or because its word was overwritten.
  [[nodiscard]] bool has_failed() const noexcept { return atomic_ops::published(word_) != 0; }
  [[nodiscard]] Decision get() const noexcept { return Decision::unpack(atomic_ops::published(word_)); }
  /// Returns whether a member of the group can have written this decision.
  [[nodiscard]] bool is_sound(Decision decision) const noexcept {
    return decision.decider < members_.size() && decision.failed() && decision.verdict <= Verdict::aborted;
  }

  /// Lets one thread of this member at a time decide: from its look at `has_failed` until its decision, so that no
  /// other thread replaces the reason of a decision that was made.
  [[nodiscard]] std::unique_lock<std::mutex> deciding() const { return std::unique_lock(deciding_); }
  /// Writes the reason of a decision that this member is about to make. Adds the root cause if one of those to blame
  /// has failed because of it. The caller holds `deciding`.
  void write_reason(Blame const& blame) const noexcept;
  /// Makes this the group's decision if it is the first one.
  void set_once(Decision decision) const noexcept;
  /// Returns the decision's root cause; empty while there is no decision.
  [[nodiscard]] std::optional<RootCause> root_cause() const;
  /// Records the decision's root cause as this rank's: whatever the rank does next in its other groups may follow from
  /// it.
  void adopt_root_cause() const noexcept;

 private:
  GroupMembers const& members_;
  std::atomic<std::uint64_t>& word_;
  mutable std::mutex deciding_{};  ///< two threads of this member may give the group up at once
};

}  // namespace crossrank::node
