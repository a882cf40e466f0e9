#include "lib/node/group/peer_watchdog.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "lib/core/log.hpp"
#include "lib/core/rank_list.hpp"
#include "lib/node/liveness/watchdog_thread.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {
namespace {

constexpr auto longest_slice = std::chrono::milliseconds(100);
constexpr auto shortest_slice = std::chrono::milliseconds(2);
constexpr auto missing_heartbeats_limit =
    std::chrono::seconds(1);  // ten heartbeats: the watchdog is stopped or starved

std::string named(std::vector<int> const& members) {
  return (members.size() == 1 ? "rank " : "ranks ") + format_ranks(members);
}

std::string milliseconds(std::chrono::nanoseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(time).count()) + " ms";
}

bool sleeps(std::atomic<std::uint32_t> const& doorbell) noexcept {
  return (doorbell.load(std::memory_order_relaxed) & 1) != 0;
}

/// Whether a rank of the node waits for others itself, in any of its groups and queues.
bool waits_itself(NodeComm const& comm, int rank) noexcept {
  auto const& blocks = comm.blocks();
  auto const holder = static_cast<std::uint32_t>(rank);
  for (std::uint32_t index = 0; index < blocks.made(); ++index) {
    auto const& header = blocks.header(index);
    auto const state = BlockLife::unpack(header.life.load(std::memory_order_acquire)).state;
    for (int i = 0; state == BlockState::ready && i < blocks.member_count(index); ++i) {
      auto const& member = blocks.members(index)[i];
      if (member.node_rank.load(std::memory_order_relaxed) == holder && sleeps(member.doorbell)) return true;
    }
    for (int i = 0; state == BlockState::queue && i < blocks.end_count(index); ++i) {
      auto const& end = blocks.ends(index)[i];
      if (end.node_rank.load(std::memory_order_relaxed) == holder && sleeps(end.doorbell)) return true;
    }
  }
  return false;
}

}  // namespace

PeerWatchdog::PeerWatchdog(Group& group, spi::TimeoutPolicy const& timeout_policy, std::string_view operation)
    : group_(group),
      timeout_policy_(timeout_policy),
      operation_(operation),
      slice_(std::clamp<std::chrono::nanoseconds>(timeout_policy.timeout / 8, shortest_slice, longest_slice)),
      last_look_(platform::system().now()),
      watched_(static_cast<std::size_t>(group.size())),
      next_suspect_(group.rank()) {
  for (int member = 0; member < group.size(); ++member) {
    auto const& record = group.comm().record(group.node_rank(member));
    watched_[static_cast<std::size_t>(member)].progress = record.progress.load(std::memory_order_relaxed);
    watched_[static_cast<std::size_t>(member)].heartbeat = record.heartbeat.load(std::memory_order_relaxed);
  }
}

bool PeerWatchdog::another_member_warns(Group::Condition& condition) const {
  for (int member = 0; member < group_.rank(); ++member) {
    if (!condition.waits_for(member) && sleeps(group_.blocks_[member].doorbell)) return true;
  }
  return false;
}

void PeerWatchdog::warn(int member, Group::Condition& condition) const {
  auto const& watched = watched_[static_cast<std::size_t>(member)];
  // A late rank keeps all others waiting: one of them tells people, the others tell sinks that ask for more.
  auto const level = another_member_warns(condition) ? LogLevel::info : LogLevel::warning;
  log_event(level, "a wait is long",
            {{"operation", operation_},
             {"group", group_.name()},
             {"waits for rank", std::to_string(member)},
             {"without progress for", platform::format_duration(watched.silent)},
             {"gives up after", platform::format_duration(watched.limit)},
             {"state", group_.comm().describe(group_.node_rank(member))}});
}

bool PeerWatchdog::too_slow(int member, std::chrono::nanoseconds awake, Group::Condition& condition) {
  auto& comm = group_.comm();
  auto const& record = comm.record(group_.node_rank(member));
  auto& watched = watched_[static_cast<std::size_t>(member)];
  auto const progress = record.progress.load(std::memory_order_relaxed);
  auto const heartbeat = record.heartbeat.load(std::memory_order_relaxed);
  watched.silent = progress == watched.progress ? watched.silent + awake : std::chrono::nanoseconds{};
  watched.without_heartbeat =
      heartbeat == watched.heartbeat ? watched.without_heartbeat + awake : std::chrono::nanoseconds{};
  watched.progress = progress;
  watched.heartbeat = heartbeat;
  bool const in_user_code = is_in_user_code(record);
  bool const has_heartbeat = comm.threads() || watched.without_heartbeat < missing_heartbeats_limit;
  watched.limit = in_user_code && has_heartbeat ? timeout_policy_.user_limit : timeout_policy_.timeout;
  if (watched.warnings.is_due(watched.silent, watched.limit)) warn(member, condition);
  return watched.silent >= watched.limit;
}

std::vector<int> Group::lost_members(Condition& condition) const {
  std::vector<int> lost;
  for (int member = 0; member < size_; ++member) {
    if (member != rank_ && departed(member) && condition.waits_for(member)) lost.push_back(member);
  }
  return lost;
}

bool Group::is_dead(int member) const noexcept { return comm_->is_dead(node_rank(member)); }

std::vector<int> Group::dead_members() const {
  std::vector<int> dead;
  for (int member = 0; member < size_; ++member) {
    if (member != rank_ && is_dead(member)) dead.push_back(member);
  }
  return dead;
}

void Group::fail_lost(Condition& condition) noexcept {
  // Who has left may have done so because of a death. That death came first, so a second look finds it: the dead alone
  // are the cause then, and all ranks name the same.
  auto lost = lost_members(condition);
  auto const alive = std::stable_partition(lost.begin(), lost.end(), [this](int member) { return is_dead(member); });
  if (alive != lost.begin()) lost.erase(alive, lost.end());
  // Nor is one of several the cause that ended because of what had failed elsewhere.
  auto const followers = std::stable_partition(lost.begin(), lost.end(), [this](int member) {
    return comm_->record(node_rank(member)).cause.state.load(std::memory_order_acquire) != RootCauseRecord::set;
  });
  if (followers != lost.begin()) lost.erase(followers, lost.end());
  if (lost.empty() || condition.done()) return;
  auto const status = status_of(lost.front());
  Failure failure{
      .verdict = Verdict::lost, .blamed = lost, .text = named(lost) + " did not arrive: " + status, .status = status};
  // A member that is dead may have arrived before: whoever leaves after its death does so because of it.
  if (auto const dead = dead_members(); !dead.empty() && !is_dead(lost.front())) {
    failure.awaited = lost;
    failure.blamed = dead;
    failure.status = status_of(dead.front());
    failure.text = named(dead) + " was lost: " + failure.status + "; " + failure.text;
  }
  fail(failure, &condition);
}

std::string Group::status_of(int member) const {
  auto const state = comm_->describe(node_rank(member));
  switch (static_cast<HandleStatus>(blocks_[member].gone.load(std::memory_order_acquire))) {
    case HandleStatus::dropped: return "it dropped its handle without closing the group; " + state;
    case HandleStatus::dropped_by_exception: return "an exception took its handle of the group; " + state;
    case HandleStatus::kept: break;
  }
  return state;
}

void Group::fail_if_lost(Condition& condition) noexcept {
  if (!lost_members(condition).empty()) fail_lost(condition);
}

/// Of those who are slow, one that is well and only waits for others is not the cause while another does not wait.
void PeerWatchdog::drop_ranks_that_only_wait(std::vector<int>& slow) const {
  auto const waiters = std::stable_partition(slow.begin(), slow.end(), [this](int member) {
    bool const has_heartbeat = group_.comm().threads() ||
                               watched_[static_cast<std::size_t>(member)].without_heartbeat < missing_heartbeats_limit;
    return !has_heartbeat || !waits_itself(group_.comm(), group_.node_rank(member));
  });
  if (waiters != slow.begin()) slow.erase(waiters, slow.end());
}

/// One in each look, and each rank begins elsewhere: whoever waits reads one file at most, however many are silent, and
/// together they ask about all of them soon.
void PeerWatchdog::check_one_suspect(Group::Condition& condition) {
  auto const& comm = group_.comm();
  if (comm.threads()) return;
  for (int step = 1; step <= group_.size(); ++step) {
    int const member = (next_suspect_ + step) % group_.size();
    int const rank = group_.node_rank(member);
    if (member == group_.rank() || !condition.waits_for(member) || !has_missed_heartbeat(comm.record(rank), last_look_))
      continue;
    static_cast<void>(comm.has_departed_slow(rank));
    next_suspect_ = member;
    return;
  }
}

void PeerWatchdog::look(Group::Condition& condition) {
  auto const now = platform::system().now();
  auto const awake = std::min<std::chrono::nanoseconds>(now - last_look_, 2 * slice_);
  last_look_ = now;
  check_one_suspect(condition);
  bool lost = false;
  std::vector<int> slow;
  for (int member = 0; member < group_.size(); ++member) {
    if (member == group_.rank()) continue;
    // The liveness word first, the arrival after it: a member that arrived and then died still counts for this round.
    bool const gone = group_.departed(member);
    if (!condition.waits_for(member)) continue;
    if (gone) {
      lost = true;
    } else if (too_slow(member, awake, condition)) {
      slow.push_back(member);
    }
  }
  if (condition.done()) return;
  if (lost) {
    group_.fail_lost(condition);
  } else if (!slow.empty()) {
    drop_ranks_that_only_wait(slow);
    auto const limit = watched_[static_cast<std::size_t>(slow.front())].limit;
    auto const status =
        "made no progress for " + milliseconds(limit) + ": " + group_.comm().describe(group_.node_rank(slow.front()));
    group_.fail({.verdict = Verdict::timeout, .blamed = slow, .text = named(slow) + " " + status, .status = status},
                &condition);
  }
}

}  // namespace crossrank::node
