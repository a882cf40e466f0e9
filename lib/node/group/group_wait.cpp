#include "lib/node/group/group.hpp"

#include "lib/node/memory/counters.hpp"
#include "lib/node/group/peer_watchdog.hpp"
#include "lib/node/group/atomic_ops.hpp"
#include "lib/platform/progress_hook.hpp"
#include "lib/platform/system.hpp"

/// How a member waits: spinning for as long as that has paid before, then asleep on its doorbell.
namespace crossrank::node {
namespace {

using platform::system;

}  // namespace

/// A round of this group that is over, one way or the other.
class Group::RoundCondition final : public Group::Condition {
 public:
  RoundCondition(Group& group, std::uint64_t round) : group_(group), round_(round) {}
  bool done() override { return group_.is_over(round_); }
  bool waits_for(int member) override { return !group_.posted(member, group_.passed_ + 1); }

 private:
  Group& group_;
  std::uint64_t round_;
};

void Group::wait_for(Condition& condition, spi::TimeoutPolicy const& timeout_policy, std::string_view operation) {
  if (spin_.wait(comm_->may_spin(), [&] { return condition.done(); })) return;
  auto& doorbell = blocks_[rank_].doorbell;
  PeerWatchdog peer_watchdog(*this, timeout_policy, operation);
  std::uint32_t departures = 0;
  for (;;) {
    auto const nap = platform::ProgressHook::make_progress(peer_watchdog.slice());
    auto const seen = atomic_ops::announce_sleep(doorbell);
    if (condition.done() || has_failed()) break;
    // Who left before the doorbell was set has rung nobody: partner of the counter's increment in front of that ring.
    if (auto const now = comm_->header().departures.load(std::memory_order_seq_cst); now != departures) {
      departures = now;
      fail_if_lost(condition);
      continue;
    }
    count(counters().futex_waits);
    system().futex_wait(reinterpret_cast<std::uint32_t const*>(&doorbell), seen, nap);
    if (condition.done() || has_failed()) break;
    peer_watchdog.look(condition);
  }
  atomic_ops::announce_awake(doorbell);
  if (!condition.done()) throw_decision(decision(), operation);
}

bool Group::test(std::uint64_t round, std::string_view operation) {
  RoundCondition condition(*this, round);
  if (!condition.done()) fail_if_lost(condition);
  if (!condition.done()) return false;
  if (passed_ < round) throw_decision(decision(), operation);
  return true;
}

std::optional<Outcome> Group::look(std::uint64_t round) noexcept {
  advance();
  if (passed_ < round) return std::nullopt;
  return outcome(round);
}

Outcome Group::wait(std::uint64_t round, spi::TimeoutPolicy const& timeout_policy, std::string_view operation) {
  if (!is_over(round)) {
    RoundCondition condition(*this, round);
    wait_for(condition, timeout_policy, operation);
  }
  if (passed_ < round) throw_decision(decision(), operation);
  return outcome(round);
}

}  // namespace crossrank::node
