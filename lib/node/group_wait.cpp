#include "lib/node/group.hpp"

#include "lib/node/counters.hpp"
#include "lib/node/patrol.hpp"
#include "lib/node/steps.hpp"
#include "lib/platform/idle_work.hpp"
#include "lib/platform/system.hpp"

/// How a member waits: awake for as long as that has paid before, then asleep on its doorbell.
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

void Group::wait_for(Condition& condition, spi::Patience const& patience, std::string_view operation) {
  if (awake_.wait(domain_->may_spin(), [&] { return condition.done(); })) return;
  auto& bell = blocks_[rank_].bell;
  Patrol patrol(*this, patience, operation);
  std::uint32_t departures = 0;
  for (;;) {
    auto const nap = platform::IdleWork::go_on(patrol.slice());
    auto const seen = steps::announce_sleep(bell);
    if (condition.done() || has_failed()) break;
    // Who left before the bell was set has rung nobody: partner of the counter's increment in front of that ring.
    if (auto const now = domain_->header().departures.load(std::memory_order_seq_cst); now != departures) {
      departures = now;
      fail_if_lost(condition);
      continue;
    }
    count(counters().futex_waits);
    system().futex_wait(reinterpret_cast<std::uint32_t const*>(&bell), seen, nap);
    if (condition.done() || has_failed()) break;
    patrol.look(condition);
  }
  steps::announce_awake(bell);
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

Outcome Group::wait(std::uint64_t round, spi::Patience const& patience, std::string_view operation) {
  if (!is_over(round)) {
    RoundCondition condition(*this, round);
    wait_for(condition, patience, operation);
  }
  if (passed_ < round) throw_decision(decision(), operation);
  return outcome(round);
}

}  // namespace crossrank::node
