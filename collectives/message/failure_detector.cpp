#include "collectives/message/failure_detector.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "lib/core/at_rank.hpp"
#include "lib/core/error_record.hpp"
#include "lib/core/log.hpp"
#include "lib/core/peer_errors.hpp"
#include "lib/core/text/rank_list.hpp"
#include "lib/platform/format_duration.hpp"

namespace crossrank::message {
namespace {

using platform::system;

constexpr auto grace = std::chrono::milliseconds(800);  // for a better informed member to name the cause
/// The same while that member waits for others itself. On a busy machine its own timeout ends later, because it counts
/// only the time in which it ran.
constexpr auto longest_grace = std::chrono::nanoseconds(std::chrono::seconds(5));

}  // namespace

// ---------------------------------------------------------------- failing

void FailureDetector::fail_at(std::uint64_t round, Cause cause) noexcept {
  if (failure_) return;
  if (deferred_failure_) {
    apply(*std::exchange(deferred_failure_, std::nullopt));
    return;
  }
  try {
    std::ranges::sort(cause.failed_ranks);
    failure_ = GroupFailure{.code = cause.code,
                            .failed_ranks = std::move(cause.failed_ranks),
                            .text = std::move(cause.text),
                            .decider = link_.rank(),
                            .round = round,
                            .dead = cause.dead};
    if (failure_->code == ErrorCode::timeout) link_.network().packet_transport().note_lost_rank();
    mark_failed_ranks_dead();
    link_.send_to_others(
        {.kind = PacketKind::failure,
         .round = round,
         .root = failure_->decider,
         .flags = failure_->dead ? flag_dead : 0U},
        encode_error({.code = failure_->code, .failed_ranks = failure_->failed_ranks, .message = failure_->text}));
    log_event(LogLevel::info, "a group has failed", {{"group", link_.name()}, {"why", failure_->text}});
  } catch (std::exception const& e) {  // the others run into their deadlines
    log_event(LogLevel::warning, "some members could not be told of a failure",
              {{"group", link_.name()}, {"why", e.what()}});
  }
}

void FailureDetector::apply(GroupFailure failure) noexcept {
  failure_ = std::move(failure);
  if (failure_->code == ErrorCode::timeout) link_.network().packet_transport().note_lost_rank();
  mark_failed_ranks_dead();
}

void FailureDetector::mark_failed_ranks_dead() noexcept {
  if (!failure_->dead) return;
  // A copy: marking a rank dead can end further groups, and this one with them.
  auto const text = failure_->text;
  auto const failed_ranks = failure_->failed_ranks;
  for (int const member : failed_ranks) {
    if (member < link_.size() && is_other(member)) link_.network().mark_dead(link_.global_rank(member), text);
  }
}

void FailureDetector::fail_if_gone(std::span<int const> awaited) noexcept {
  if (failure_ || !anyone_gone_) return;
  std::vector<int> lost;
  for (int const member : awaited) {
    if (member >= 0 && at_rank(gone_, member)) lost.push_back(member);
  }
  if (lost.empty()) return;
  auto text = name_ranks(lost) + " left the group without closing it: " + link_.describe(lost.front());
  fail({.code = ErrorCode::peer_lost, .failed_ranks = std::move(lost), .text = std::move(text)});
}

void FailureDetector::append_possible_senders(std::vector<int>& to) const {
  auto const append_others = [&](auto const& include) {
    for (int member = 0; member < link_.size(); ++member) {
      if (is_other(member) && include(member)) to.push_back(member);
    }
  };
  append_others([this](int member) { return !at_rank(gone_, member); });
  if (to.empty()) append_others([](int) { return true; });
  if (to.empty()) to.push_back(link_.rank());
}

void FailureDetector::fail_if_missing_are_gone() noexcept {
  if (anyone_gone_ && link_.rank() == 0 && rounds_.has_arrivals()) fail_if_gone(rounds_.missing());
}

void FailureDetector::throw_failure(char const* operation) const {
  auto error = link_.info(operation);
  error.message = failure_->text;
  error.failed_ranks = failure_->failed_ranks;
  error.group_usable = false;
  for (int const member : failure_->failed_ranks) {
    if (member >= 0 && member < link_.size())
      error.details.push_back("rank " + std::to_string(member) + ": " + link_.describe(member));
  }
  error.details.push_back("round " + std::to_string(failure_->round) + ", decided by rank " +
                          std::to_string(failure_->decider) + "; all ranks of the group get this error");
  throw_peer_error(failure_->code, std::move(error));
}

// ---------------------------------------------------------------- packets of other members

void FailureDetector::take_failure(PacketHeader const& head, Bytes body) {
  if (failure_ || deferred_failure_) return;
  auto reported = decode_error(body);
  deferred_failure_ = GroupFailure{.code = reported.code,
                                   .failed_ranks = std::move(reported.info.failed_ranks),
                                   .text = std::move(reported.info.message),
                                   .decider = head.root,
                                   .round = head.round,
                                   .dead = (head.flags & flag_dead) != 0};
  deferred_since_ = system().now();
  apply_deferred_failure_if_due();
}

void FailureDetector::apply_deferred_failure_if_due() noexcept {
  if (!deferred_failure_) return;
  if (deferred_failure_->round <= rounds_.current() || system().now() - deferred_since_ >= grace)
    apply(*std::exchange(deferred_failure_, std::nullopt));
}

void FailureDetector::take_gone(int member) noexcept {
  at_rank(gone_, member) = true;
  anyone_gone_ = true;
  fail_if_missing_are_gone();
}

void FailureDetector::take_overdue(PacketHeader const& head) {
  if (link_.rank() != 0 || head.round != rounds_.current() || failure_) return;
  auto late = rounds_.missing();
  // This rank itself waits for bytes of another one, and will name that one.
  if (late.front() == 0 && link_.network().own_status().waiting) return;
  keep_causes(late, answers_within);
  fail(no_progress(std::move(late), head.bytes));
}

Status FailureDetector::status(std::uint64_t round) const {
  auto own = link_.network().own_status();
  if (link_.rank() != 0 || round != rounds_.current()) return own;
  auto const now = system().now();
  for (int const member : rounds_.missing()) {
    if (member == 0) continue;
    auto& peer = link_.peer(member);
    own.progress += peer.status.progress;
    own.user_code = own.user_code || (peer.status.user_code && now - peer.heard < answers_within);
    if (now - peer.pinged < ping_interval) continue;  // many ranks may ask
    peer.pinged = now;
    link_.send(member, {.kind = PacketKind::ping, .round = round});
  }
  return own;
}

// ---------------------------------------------------------------- waiting

void FailureDetector::watch(AwaitedEvent const& awaited, WaitState& wait, spi::TimeoutPolicy const& timeout_policy) {
  auto const now = system().now();
  bool moved = wait.moves.value_or(moves_) != moves_;
  wait.moves = moves_;
  bool user_code = false;
  for (int const member : awaited.members) {
    if (!is_other(member)) continue;
    auto const& peer = link_.peer(member);
    auto const [known, fresh] = wait.progress.try_emplace(member, peer.status.progress);
    moved = moved || (!fresh && std::exchange(known->second, peer.status.progress) != peer.status.progress);
    user_code = user_code || (peer.status.user_code && now - peer.heard < answers_within);
  }
  if (moved) {
    wait.deadline.progress();
  } else {
    wait.deadline.tick();
  }
  if (now - wait.last_ping >= ping_interval) {
    wait.last_ping = now;
    ping(awaited);
  }
  wait.limit = user_code ? timeout_policy.user_limit : timeout_policy.timeout;
  if (wait.warnings.is_due(wait.deadline.idle(), wait.limit)) warn(awaited, wait);
  if (wait.deadline.idle() >= wait.limit) {
    expire(awaited, wait);
  } else {
    wait.overdue_since = std::chrono::nanoseconds(-1);
  }
}

void FailureDetector::ping(AwaitedEvent const& awaited) const {
  auto const now = system().now();
  for (int const member : awaited.members) {
    if (!is_other(member)) continue;
    auto& peer = link_.peer(member);
    // A program may poll many messages. A ping for a round also asks for the members that the round waits for.
    bool const is_message = awaited.kind == AwaitedEvent::Kind::message;
    if (is_message && now - peer.pinged < ping_interval) continue;
    peer.pinged = now;
    link_.send(member, {.kind = PacketKind::ping, .round = awaited.round});
  }
}

/// Warns people of a long wait. Only the first member knows the members that a round waits for. The others only know
/// that they wait for the first member: they log at level info, as does a rank that waits for a rank that waits itself.
void FailureDetector::warn(AwaitedEvent const& awaited, WaitState const& wait) const {
  bool const knows = link_.rank() == 0;
  std::vector<int> late;
  for (int const member : awaited.members) {
    if (!is_other(member)) continue;
    bool const is_late = awaited.kind == AwaitedEvent::Kind::round ? knows : !link_.peer(member).status.waiting;
    if (is_late) late.push_back(member);
  }
  auto const& members = late.empty() ? awaited.members : late;
  if (members.empty()) return;
  log_event(late.empty() ? LogLevel::info : LogLevel::warning, "still waiting",
            {{"operation", awaited.operation},
             {"group", link_.name()},
             {"waits for rank", format_ranks(members)},
             {"without progress for", platform::format_duration(wait.deadline.idle())},
             {"gives up after", platform::format_duration(wait.limit)},
             {"state", link_.describe(members.front())}});
}

/// Fails the group once this rank knows whom to name. In a round, the first member knows. A rank that waits for bytes
/// knows a member that neither answers nor waits. All other ranks wait for a better-informed member first, longer if
/// the late members wait themselves.
void FailureDetector::expire(AwaitedEvent const& awaited, WaitState& wait) {
  auto const now = system().now();
  auto const milliseconds =
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(wait.limit).count());
  bool const by_bytes = awaited.kind != AwaitedEvent::Kind::round;
  bool const knows = link_.rank() == 0 && !by_bytes;
  bool const first = wait.overdue_since.count() < 0;
  if (first) wait.overdue_since = now;
  if (first && !by_bytes && !knows)
    link_.send(0, {.kind = PacketKind::overdue, .round = awaited.round, .bytes = milliseconds});
  auto const silent_for = std::min<std::chrono::nanoseconds>(answers_within, wait.deadline.timeout() / 2);
  auto slow = awaited.members;
  bool const all_wait = !keep_causes(slow, silent_for);
  bool const sure = knows || (by_bytes && !all_wait);
  auto const allowed = all_wait ? std::clamp<std::chrono::nanoseconds>(wait.limit, grace, longest_grace) : grace;
  if (!sure && now - wait.overdue_since < allowed) return;
  auto const round = awaited.kind == AwaitedEvent::Kind::payload ? rounds_.passed() : rounds_.current();
  fail_at(round, no_progress(std::move(slow), milliseconds));
}

bool FailureDetector::keep_causes(std::vector<int>& members, std::chrono::nanoseconds silent_for) const {
  auto const now = system().now();
  auto const others = std::stable_partition(members.begin(), members.end(), [&](int member) {
    auto const& peer = link_.peer(member);
    return !peer.status.waiting || now - peer.heard > silent_for;
  });
  bool const found = others != members.begin();
  if (found) members.erase(others, members.end());
  return found;
}

FailureDetector::Cause FailureDetector::no_progress(std::vector<int> members, std::uint64_t milliseconds) const {
  auto text = name_ranks(members) + " made no progress for " + std::to_string(milliseconds) +
              " ms: " + link_.describe(members.front());
  return {.code = ErrorCode::timeout, .failed_ranks = std::move(members), .text = std::move(text)};
}

}  // namespace crossrank::message
