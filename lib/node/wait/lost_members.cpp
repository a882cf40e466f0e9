#include "lib/node/wait/lost_members.hpp"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "lib/core/rank_list.hpp"

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

Blame blame_for(GroupMembers const& members, std::vector<int> const& lost) {
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
  }
  return blame;
}

}  // namespace

void fail_if_lost(GroupMembers const& members, Rounds& rounds, WaitCondition& condition) noexcept {
  if (lost_members(members, condition).empty()) return;
  // A member may have left because another one died. That death came first, so a second look finds it. Then only the
  // dead are the cause, and all ranks blame the same members.
  auto lost = lost_members(members, condition);
  keep_causes(lost, [&](int member) { return members.is_dead(member); });
  // A member that ended because of a failure elsewhere is not the cause, if another one is.
  keep_causes(lost, [&](int member) {
    return members.record(member).cause.state.load(std::memory_order_acquire) != RootCauseRecord::set;
  });
  if (lost.empty() || condition.done()) return;
  rounds.fail(blame_for(members, lost), &condition);
}

}  // namespace crossrank::node
