#include "lib/node/group.hpp"

#include <algorithm>
#include <chrono>

#include "lib/node/counters.hpp"
#include "lib/node/patrol.hpp"
#include "lib/platform/system.hpp"

/// How a member waits: awake for as long as that has paid before, then asleep on its doorbell.
namespace crossrank::node {
namespace {

using platform::system;

// Looks at the condition, some 30 ns each: from a microsecond, for peers that share a CPU after all, to two
// milliseconds.
constexpr int least_spins = 32;
constexpr int most_spins = 64'000;
constexpr int yields_before_sleep = 4;
constexpr auto quick_yield = std::chrono::microseconds(2);  // less than two switches of context

void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

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

bool Group::spin(Condition& condition, int times) {
  for (int i = 0; i < times; ++i) {
    if (condition.done()) return true;
    relax();
  }
  return false;
}

/// Waits awake. How long pays is learned: a yield that returns at once says that nobody else wants this CPU, so
/// spinning goes on; one that does not says that the peer may be waiting for this very CPU, so it goes on sooner the
/// next time.
bool Group::wait_awake(Condition& condition) {
  bool const may_spin = domain_->may_spin();
  if (may_spin && spin(condition, spins_)) {
    spins_ = std::min(spins_ * 2, most_spins);
    return true;
  }
  for (int slow = 0, spun = spins_; slow < yields_before_sleep && spun < most_spins;) {
    auto const before = system().now();
    count(counters().yields);
    system().yield();
    if (condition.done()) return true;
    if (!may_spin || system().now() - before > quick_yield) {
      ++slow;
      spins_ = std::max(spins_ / 2, least_spins);
      continue;
    }
    spins_ = std::min(spins_ * 2, most_spins);
    spun += spins_;
    if (spin(condition, spins_)) return true;
  }
  return false;
}

void Group::wait_for(Condition& condition, spi::Patience const& patience, std::string_view operation) {
  if (wait_awake(condition)) return;
  auto& bell = blocks_[rank_].bell;
  Patrol patrol(*this, patience);
  std::uint32_t departures = 0;
  for (;;) {
    auto const seen = bell.fetch_or(1, std::memory_order_seq_cst) | 1;
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
  bell.fetch_and(~1U, std::memory_order_relaxed);
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
