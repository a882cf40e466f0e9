#include "lib/node/wait/peer_watchdog.hpp"

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include "lib/core/as_size.hpp"
#include "lib/core/log.hpp"
#include "lib/core/text/rank_list.hpp"
#include "lib/node/wait/lost_members.hpp"
#include "lib/node/liveness/root_cause.hpp"
#include "lib/node/liveness/watchdog_thread.hpp"
#include "lib/node/wait/wait_for_graph.hpp"
#include "lib/platform/format_duration.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {
namespace {

constexpr auto longest_slice = std::chrono::milliseconds(100);
constexpr auto shortest_slice = std::chrono::milliseconds(2);
/// Ten heartbeats. A watchdog thread that is silent for longer is stopped or gets no CPU.
constexpr auto missing_heartbeats_limit = std::chrono::seconds(1);

bool is_asleep(std::atomic<std::uint32_t> const& doorbell) noexcept {
  return (doorbell.load(std::memory_order_relaxed) & atomic_ops::asleep_bit) != 0;
}

/// Returns whether a rank of the node waits for others itself, in any of its groups and queues.
bool waits_itself(NodeComm const& comm, int rank) noexcept {
  auto const& blocks = comm.blocks();
  auto const holder = static_cast<std::uint32_t>(rank);
  for (std::uint32_t index = 0; index < blocks.made(); ++index) {
    auto const& header = blocks.header(index);
    auto const state = BlockUse::unpack(header.use_word.load(std::memory_order_acquire)).state;
    for (int i = 0; state == BlockState::ready && i < blocks.member_count(index); ++i) {
      auto const& member = blocks.members(index)[i];
      if (member.node_rank.load(std::memory_order_relaxed) == holder && is_asleep(member.doorbell)) return true;
    }
    for (int i = 0; state == BlockState::queue && i < blocks.endpoint_count(index); ++i) {
      auto const& endpoint = blocks.endpoints(index)[i];
      if (holder_of(endpoint) == holder && is_asleep(endpoint.doorbell)) return true;
    }
  }
  return false;
}

/// Returns the rank that slow members ultimately wait for, in groups that this rank may not be in. Empty if it is one
/// of them, if they wait for each other, or if the rank runs the caller's code, for which a longer limit holds.
std::optional<RootCause> end_of_chain(GroupMembers const& members, std::vector<int> const& slow) {
  auto const& comm = members.comm();
  auto const direct = members.node_ranks_of(slow);
  auto const last = blocking_ranks(comm, direct, members.node_rank(members.rank()));
  if (std::find_first_of(last.begin(), last.end(), direct.begin(), direct.end()) != last.end()) return std::nullopt;
  int const rank = last.front();
  auto const& record = comm.record(rank);
  bool const has_heartbeat = comm.threads() || !has_missed_heartbeat(record, platform::system().now());
  if (is_in_user_code(record) && has_heartbeat) return std::nullopt;
  return RootCause{static_cast<int>(record.global_rank), "keeps other ranks waiting: " + comm.describe(rank),
                   Verdict::timeout};
}

}  // namespace

PeerWatchdog::PeerWatchdog(GroupMembers const& members, Rounds& rounds, spi::TimeoutPolicy const& timeout_policy,
                           std::string_view operation)
    : members_(members),
      rounds_(rounds),
      timeout_policy_(timeout_policy),
      operation_(operation),
      slice_(std::clamp<std::chrono::nanoseconds>(timeout_policy.timeout / 8, shortest_slice, longest_slice)),
      last_poll_(platform::system().now()),
      watched_(as_size(members.size())),
      last_suspect_(members.rank()) {
  for (int member = 0; member < members.size(); ++member) {
    auto const& record = members.record(member);
    watched(member).silent = timeout_policy.waited;
    watched(member).progress = record.progress.load(std::memory_order_relaxed);
    watched(member).heartbeat = record.heartbeat.load(std::memory_order_relaxed);
  }
}

bool PeerWatchdog::another_member_warns(WaitCondition& condition) const {
  for (int member = 0; member < members_.rank(); ++member) {
    if (!condition.waits_for(member) && is_asleep(members_.block_of(member).doorbell)) return true;
  }
  return false;
}

void PeerWatchdog::warn(int member, WaitCondition& condition) const {
  // All members wait for a slow one. One of them warns the user; the others log at a level that most sinks leave out.
  auto const level = another_member_warns(condition) ? LogLevel::info : LogLevel::warning;
  log_event(level, "still waiting",
            {{"operation", operation_},
             {"group", members_.name()},
             {"waits for rank", std::to_string(member)},
             {"without progress for", platform::format_duration(watched(member).silent)},
             {"gives up after", platform::format_duration(watched(member).limit)},
             {"state", members_.comm().describe(members_.node_rank(member))}});
}

bool PeerWatchdog::has_heartbeat(int member) const noexcept {
  return members_.comm().threads() || watched(member).without_heartbeat < missing_heartbeats_limit;
}

bool PeerWatchdog::is_too_slow(int member, std::chrono::nanoseconds awake, WaitCondition& condition) {
  auto const& record = members_.record(member);
  auto& watch = watched(member);
  auto const progress = record.progress.load(std::memory_order_relaxed);
  auto const heartbeat = record.heartbeat.load(std::memory_order_relaxed);
  watch.silent = progress == watch.progress ? watch.silent + awake : std::chrono::nanoseconds{};
  watch.without_heartbeat = heartbeat == watch.heartbeat ? watch.without_heartbeat + awake : std::chrono::nanoseconds{};
  watch.progress = progress;
  watch.heartbeat = heartbeat;
  watch.limit = is_in_user_code(record) && has_heartbeat(member) ? timeout_policy_.user_limit : timeout_policy_.timeout;
  if (watch.warnings.is_due(watch.silent, watch.limit)) warn(member, condition);
  return watch.silent >= watch.limit;
}

/// A slow member that is well and only waits for others is not the cause, if another slow member does not wait.
void PeerWatchdog::drop_ranks_that_only_wait(std::vector<int>& slow) const {
  auto const waiting = std::stable_partition(slow.begin(), slow.end(), [this](int member) {
    return !has_heartbeat(member) || !waits_itself(members_.comm(), members_.node_rank(member));
  });
  if (waiting != slow.begin()) slow.erase(waiting, slow.end());
}

/// A poll reads one file at most, however many members are silent. Each rank begins its search elsewhere, so that
/// together they soon check all of them.
void PeerWatchdog::check_one_suspect(WaitCondition& condition) {
  auto const& comm = members_.comm();
  if (comm.threads()) return;
  for (int step = 1; step <= members_.size(); ++step) {
    int const member = (last_suspect_ + step) % members_.size();
    if (member == members_.rank() || !condition.waits_for(member) ||
        !has_missed_heartbeat(members_.record(member), last_poll_))
      continue;
    static_cast<void>(comm.has_departed_slow(members_.node_rank(member)));
    last_suspect_ = member;
    return;
  }
}

void PeerWatchdog::poll(WaitCondition& condition) {
  auto const now = platform::system().now();
  auto const awake = std::min<std::chrono::nanoseconds>(now - last_poll_, 2 * slice_);
  last_poll_ = now;
  check_one_suspect(condition);
  bool lost = false;
  bool well = false;  // whether a member that is waited for makes progress
  std::vector<int> slow;
  for (int member = 0; member < members_.size(); ++member) {
    if (member == members_.rank()) continue;
    // The liveness word is read before the arrival: the arrival of a member that then died still counts.
    bool const gone = members_.has_departed(member);
    if (!condition.waits_for(member)) continue;
    if (gone) {
      lost = true;
    } else if (is_too_slow(member, awake, condition)) {
      slow.push_back(member);
    } else {
      well = true;
    }
  }
  if (condition.done()) return;
  if (lost) {
    fail_if_lost(members_, rounds_, condition);
  } else if (!slow.empty() && !(well && condition.any_member_suffices())) {
    drop_ranks_that_only_wait(slow);
    int const first = slow.front();
    // A stopped rank is the cause itself, even if it waits.
    auto cause = has_heartbeat(first) ? end_of_chain(members_, slow) : std::nullopt;
    auto const status = "made no progress for " + platform::format_milliseconds(watched(first).limit) + ": " +
                        members_.comm().describe(members_.node_rank(first));
    rounds_.fail({.verdict = Verdict::timeout,
                  .members = slow,
                  .text = name_ranks(slow) + " " + status,
                  .status = status,
                  .cause = std::move(cause)},
                 &condition);
  }
}

}  // namespace crossrank::node
