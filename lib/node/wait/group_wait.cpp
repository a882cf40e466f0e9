#include "lib/node/wait/group_wait.hpp"

#include "lib/node/group/atomic_ops.hpp"
#include "lib/node/wait/lost_members.hpp"
#include "lib/node/wait/peer_watchdog.hpp"
#include "lib/node/memory/counters.hpp"
#include "lib/platform/progress_hook.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {
namespace {

/// A round has passed or failed.
class RoundIsOver final : public WaitCondition {
 public:
  RoundIsOver(Rounds& rounds, std::uint64_t round) : rounds_(rounds), round_(round) {}
  bool done() override { return rounds_.is_over(round_); }
  bool waits_for(int member) override { return !rounds_.has_arrived(member); }

 private:
  Rounds& rounds_;
  std::uint64_t round_;
};

}  // namespace

void GroupWait::wait_for(WaitCondition& condition, spi::TimeoutPolicy const& timeout_policy,
                         std::string_view operation) {
  auto const& comm = members_.comm();
  if (spin_.wait(comm.may_spin(), [&] { return condition.done(); })) return;
  auto& doorbell = members_.own_block().doorbell;
  PeerWatchdog watchdog(members_, rounds_, timeout_policy, operation);
  std::uint32_t departures = 0;
  for (;;) {
    auto const nap = platform::ProgressHook::make_progress(watchdog.slice());
    auto const seen = atomic_ops::announce_sleep(doorbell);
    if (condition.done() || decision_.has_failed()) break;
    // A member that left before the doorbell announced the sleep has not rung it. Partner of the counter's increment,
    // which precedes that ring.
    if (auto const now = comm.header().departures.load(std::memory_order_seq_cst); now != departures) {
      departures = now;
      fail_if_lost(members_, rounds_, condition);
      continue;
    }
    count(counters().futex_waits);
    platform::system().futex_wait(reinterpret_cast<std::uint32_t const*>(&doorbell), seen, nap);
    if (condition.done() || decision_.has_failed()) break;
    watchdog.poll(condition);
  }
  atomic_ops::announce_awake(doorbell);
  if (!condition.done()) errors_.throw_decision(operation);
}

void GroupWait::wait_for_round(std::uint64_t round, spi::TimeoutPolicy const& timeout_policy,
                               std::string_view operation) {
  if (!rounds_.is_over(round)) {
    RoundIsOver condition(rounds_, round);
    wait_for(condition, timeout_policy, operation);
  }
  if (!rounds_.has_passed(round)) errors_.throw_decision(operation);
}

void GroupWait::watch_round(PeerWatchdog& watchdog, std::uint64_t round) {
  RoundIsOver condition(rounds_, round);
  if (!condition.done()) watchdog.poll(condition);
}

bool GroupWait::test_round(std::uint64_t round, std::string_view operation) {
  RoundIsOver condition(rounds_, round);
  if (!condition.done()) fail_if_lost(members_, rounds_, condition);
  if (!condition.done()) return false;
  if (!rounds_.has_passed(round)) errors_.throw_decision(operation);
  return true;
}

}  // namespace crossrank::node
