#include "lib/node/group.hpp"

#include "lib/node/counters.hpp"
#include "lib/node/patrol.hpp"
#include "lib/node/steps.hpp"
#include "lib/platform/system.hpp"

/// How a member waits: awake for as long as that has paid before, then asleep on its doorbell.
namespace crossrank::node {
namespace {

using platform::system;

}  // namespace

/// A round of this group that is decided, one way or the other.
class Group::RoundCondition final : public Group::Condition {
 public:
  RoundCondition(Group& group, std::uint64_t round) : group_(group), round_(round) {}
  bool done() override { return group_.decision().round >= round_; }
  bool waits_for(int member) override { return !group_.posted(member, group_.decision().round + 1); }

 private:
  Group& group_;
  std::uint64_t round_;
};

void Group::wait_for(Condition& condition, spi::Patience const& patience, std::string_view operation) {
  if (awake_.wait(domain_->may_spin(), [&] { return condition.done(); })) return;
  auto& bell = blocks_[rank_].bell;
  Patrol patrol(*this, patience);
  std::uint32_t departures = 0;
  for (;;) {
    auto const seen = steps::announce_sleep(bell);
    if (condition.done() || decision().failed()) break;
    // Who left before the bell was set has rung nobody: partner of the counter's increment in front of that ring.
    if (auto const now = domain_->header().departures.load(std::memory_order_seq_cst); now != departures) {
      departures = now;
      fail_if_lost(condition);
      advance();
      continue;
    }
    count(counters().futex_waits);
    system().futex_wait(reinterpret_cast<std::uint32_t const*>(&bell), seen, patrol.slice());
    if (condition.done() || decision().failed()) break;
    patrol.look(condition);
    advance();  // the last to arrive may have died between its arrival and the decision
  }
  steps::announce_awake(bell);
  if (!condition.done()) throw_if_failed(operation);
}

bool Group::test(std::uint64_t round, std::string_view operation) {
  auto const last = decision();
  if (last.round < round) {
    advance();
    RoundCondition condition(*this, round);
    if (!condition.done()) fail_if_lost(condition);
    if (!condition.done()) {
      throw_if_failed(operation);
      return false;
    }
  }
  if (auto const now = decision(); now.failed() && now.round <= round) throw_decision(now, operation);
  return true;
}

std::optional<Outcome> Group::look(std::uint64_t round) const noexcept {
  auto const last = decision();
  if (last.round != round || last.failed()) return std::nullopt;
  return last.verdict == Verdict::pass_failed ? Outcome::passed_failed : Outcome::passed;
}

Outcome Group::wait(std::uint64_t round, spi::Patience const& patience, std::string_view operation) {
  RoundCondition condition(*this, round);
  if (!condition.done()) wait_for(condition, patience, operation);
  auto const last = decision();
  if (last.failed() && last.round <= round) throw_decision(last, operation);
  // A round after `round` cannot be decided before this member has posted it, so the word still shows this one, unless
  // the member arrived at two at once and asks for the first.
  return last.round == round && last.verdict == Verdict::pass_failed ? Outcome::passed_failed : Outcome::passed;
}

}  // namespace crossrank::node
