#include "lib/node/wait/lost_members.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/core/text/rank_list.hpp"
#include "lib/node/liveness/root_cause.hpp"

namespace crossrank::node {
namespace {

/// Returns the members that have departed and that the condition still waits for.
std::vector<int> lost_members(GroupMembers const& members, WaitCondition& condition) {
  std::vector<int> lost;
  for (int member = 0; member < members.size(); ++member) {
    if (member != members.rank() && members.has_departed(member) && condition.waits_for(member)) lost.push_back(member);
  }
  return lost;
}

/// Keeps only those for which `is_cause` holds, if there are any.
template <class IsCause>
void keep_causes(std::vector<int>& members, IsCause&& is_cause) {
  auto const others = std::stable_partition(members.begin(), members.end(), is_cause);
  if (others != members.begin()) members.erase(others, members.end());
}

/// Returns the failure that made a lost member leave. A rank that left no exit reason was killed by a signal.
/// A failure that it noted before is not the reason.
std::optional<RootCause> cause_of(GroupMembers const& members, int member) {
  bool const killed = members.is_dead(member) && members.comm().exit_reason(members.node_rank(member)).empty();
  return killed ? std::nullopt : read_cause(members.record(member).cause);
}

/// Returns the member that is the rank `global_rank` of the job; -1 if there is none.
int member_of(GroupMembers const& members, int global_rank) {
  for (int member = 0; member < members.size(); ++member) {
    if (static_cast<int>(members.record(member).global_rank) == global_rank) return member;
  }
  return -1;
}

/// Changes the blame if all lost members left because of members that have not arrived either. Then those are the
/// cause, and a cause that is alive and was too slow is late rather than lost.
void follow_causes(GroupMembers const& members, WaitCondition& condition, Blame& blame) {
  std::vector<int> causes;
  std::optional<RootCause> first;
  for (int const member : blame.members) {
    auto cause = cause_of(members, member);
    int const cause_member = cause ? member_of(members, cause->global_rank) : -1;
    if (cause_member < 0 || cause_member == members.rank() || !condition.waits_for(cause_member)) return;
    if (std::find(causes.begin(), causes.end(), cause_member) == causes.end()) causes.push_back(cause_member);
    if (!first) first = std::move(cause);
  }
  if (!first || causes == blame.members) return;
  bool const all_alive =
      std::none_of(causes.begin(), causes.end(), [&](int cause_member) { return members.has_departed(cause_member); });
  if (first->verdict == Verdict::timeout && all_alive) blame.verdict = Verdict::timeout;
  blame.text = "rank " + std::to_string(causes.front()) + " " + first->text + "; " + blame.text;
  blame.status = std::move(first->text);
  blame.awaited = std::exchange(blame.members, std::move(causes));
}

Blame blame_for(GroupMembers const& members, WaitCondition& condition, std::vector<int> const& lost) {
  auto const status = members.describe_departure(lost.front());
  Blame blame{.verdict = Verdict::lost,
              .members = lost,
              .text = name_ranks(lost) + " did not arrive: " + status,
              .status = status};
  // A member may have arrived and then died. Members that leave after its death leave because of it.
  if (auto const dead = members.dead(); !dead.empty() && !members.is_dead(lost.front())) {
    blame.awaited = lost;
    blame.members = dead;
    blame.status = members.describe_departure(dead.front());
    blame.text = name_ranks(dead) + " was lost: " + blame.status + "; " + blame.text;
  } else {
    follow_causes(members, condition, blame);
  }
  return blame;
}

}  // namespace

void fail_if_lost(GroupMembers const& members, Rounds& rounds, WaitCondition& condition) noexcept {
  if (lost_members(members, condition).empty()) return;
  // A member may have left because another one died. That death came first, so a second check finds it. Then only the
  // dead are the cause, and all ranks blame the same members.
  auto lost = lost_members(members, condition);
  keep_causes(lost, [&](int member) { return members.is_dead(member); });
  // A member that ended because of a failure elsewhere is not the cause, if another one is.
  keep_causes(lost, [&](int member) { return !has_cause(members.record(member).cause); });
  if (lost.empty() || condition.done()) return;
  rounds.fail(blame_for(members, condition, lost), &condition);
}

}  // namespace crossrank::node
