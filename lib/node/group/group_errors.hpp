#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/core/error_record.hpp"
#include "lib/node/group/arrivals.hpp"
#include "lib/node/group/group_decision.hpp"
#include "lib/node/group/group_members.hpp"

namespace crossrank::node {

/// The errors of a group. A failure has the same error on all members.
class GroupErrors {
 public:
  GroupErrors(GroupMembers const& members, Arrivals const& arrivals, GroupDecision const& decision) noexcept
      : members_(members), arrivals_(arrivals), decision_(decision) {}

  /// Throws the error of a group that has failed: `PeerLostError`, `TimeoutError` or `MismatchError`; `FormatError`
  /// if no member can have written the decision.
  [[noreturn]] void throw_decision(std::string_view operation) const;
  /// Throws the `FormatError` for a field of the group's block that no member can have written.
  [[noreturn]] void throw_corrupt(std::string operation, std::string field, std::string expected,
                                  std::string got) const;
  /// Returns the errors with which members arrived at a round that has passed.
  [[nodiscard]] std::vector<RankError> member_errors(std::uint64_t round) const;
  /// Returns who is to blame because the members call different things in a round: the smallest set that agrees.
  [[nodiscard]] Blame blame_for_mismatch(std::uint64_t round) const;

 private:
  [[nodiscard]] ErrorInfo info_of(Decision decision, std::string_view operation) const;

  GroupMembers const& members_;
  Arrivals const& arrivals_;
  GroupDecision const& decision_;
};

}  // namespace crossrank::node
