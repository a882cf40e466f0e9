#include "lib/node/group/group_decision.hpp"

#include <algorithm>

#include "lib/node/liveness/failure_record.hpp"
#include "lib/node/liveness/root_cause.hpp"
#include "lib/platform/crash_point.hpp"

namespace crossrank::node {

void GroupDecision::write_reason(Blame const& blame) const noexcept {
  auto& own = members_.own_block();
  clear_cause(own.root_cause);
  auto text = blame.text;
  auto earlier = blame.cause;
  for (int const member : blame.members) {
    if (!earlier) earlier = read_cause(members_.record(member).cause);
  }
  if (earlier) {
    set_cause(own.root_cause, *earlier);
    // The text may have grown on its way here. It is truncated rather than the root cause.
    auto const cause = "; root cause: " + earlier->sentence();
    text.resize(std::min(text.size(), FailureRecord::max_text - std::min(cause.size(), FailureRecord::max_text)));
    text += cause;
  }
  // Has no effect if an earlier cause is set.
  set_cause(own.root_cause,
            {static_cast<int>(members_.record(blame.members.front()).global_rank), blame.status, blame.verdict});
  // The first member is the one that text and status describe. A record has its ranks in ascending order.
  auto failed = blame.members;
  std::ranges::sort(failed);
  fill_failure_record(own.failure, {.code = ErrorCode::peer_lost, .failed_ranks = failed, .message = text});
}

void GroupDecision::set_once(Decision decision) const noexcept {
  std::uint64_t undecided = 0;
  if (!atomic_ops::set_once(word_, undecided, decision.pack())) return;
  members_.comm().header().failures.fetch_add(1, std::memory_order_seq_cst);
  CROSSRANK_CRASH_POINT("node.group.failing.decided");
}

std::optional<RootCause> GroupDecision::root_cause() const {
  auto const decision = get();
  return is_sound(decision) ? read_cause(members_.block_of(decision.decider).root_cause) : std::nullopt;
}

void GroupDecision::adopt_root_cause() const noexcept {
  if (auto const cause = root_cause()) set_cause(members_.comm().own_record().cause, *cause);
}

}  // namespace crossrank::node
