#include "lib/node/group/rounds.hpp"

#include <algorithm>
#include <cstring>

#include "lib/core/at_rank.hpp"
#include "lib/core/log.hpp"
#include "lib/node/group/atomic_ops.hpp"
#include "lib/node/liveness/failure_record.hpp"
#include "lib/node/liveness/root_cause.hpp"
#include "lib/platform/crash_point.hpp"

namespace crossrank::node {

void Rounds::write_line(Arrival& line, Post const& post, std::uint8_t flags) const noexcept {
  line.digest = post.digest;
  line.offset = post.offset;
  line.bytes = post.bytes;
  line.generation = post.slot.generation;
  line.slot = post.slot.id;
  line.op_kind = static_cast<std::uint8_t>(post.op_kind);
  line.flags = static_cast<std::uint8_t>(flags | (post.inlined.empty() ? 0 : arrival_inline));
  line.also.store(post.also_closes, std::memory_order_relaxed);
  line.root = static_cast<std::uint16_t>(post.root);
  if (!post.inlined.empty()) {
    line.bytes = post.inlined.size();
    std::memcpy(line.inlined, post.inlined.data(), post.inlined.size());
  }
}

void Rounds::note_arguments(std::uint64_t round, std::string_view arguments) const noexcept {
  auto& noted = members_.own_block().noted[round & 1];
  noted.round.store(0, std::memory_order_relaxed);
  noted.bytes = static_cast<std::uint8_t>(arguments.copy(noted.arguments, sizeof noted.arguments));
  noted.round.store(round, std::memory_order_release);  // partner of the load in `Arrivals::call_in_words`
}

std::uint64_t Rounds::arrive(Post const& post, std::uint8_t flags) {
  auto const round = posted_ + 1;
  auto& comm = members_.comm();
  clear_cause(comm.own_record().cause);
  bool const closing = post.op_kind == spi::OpKind::close || post.op_kind == spi::OpKind::range_close;
  if (!closing) comm.own_record().peer_error.store(0, std::memory_order_relaxed);
  // May take a lock, which would otherwise wait for the stores to the line: other members poll it meanwhile.
  comm.note({.op_kind = post.op_kind,
             .block = members_.block(),
             .round = round,
             .bytes = post.inlined.empty() ? post.bytes : post.inlined.size()});
  comm.count_progress();
  auto& line = line_of(members_.own_block(), round);
  write_line(line, post, flags);
  if (!post.arguments.empty()) note_arguments(round, post.arguments);
  CROSSRANK_CRASH_POINT("node.group.arriving");
  auto before = line.round.load(std::memory_order_acquire);  // a veto comes after its reason
  if (ArrivalWord{before}.vetoed() || !atomic_ops::set_once(line.round, before, round)) {
    decision_.set_once(ArrivalWord{before}.decision());
    members_.ring_others();
    errors_.throw_decision(spi::to_string(post.op_kind));
  }
  posted_ = round + (post.also_closes != 0 ? 1 : 0);
  CROSSRANK_CRASH_POINT("node.group.arrived");
  // Fetches the next line back from the caches of its readers while this member waits anyway. Not while this member is
  // two rounds ahead: others may still evaluate that line.
  if (passed() + 1 == posted_) line_of(members_.own_block(), posted_ + 1).digest = 0;
  if (advance()) members_.ring_others();  // the last member to arrive sees all others, and wakes those that sleep
  return round;
}

std::uint64_t Rounds::arrive(Post const& post) { return arrive(post, 0); }

std::uint64_t Rounds::arrive_with_error(Post const& post, ErrorRecord const& error) {
  auto const round = posted_ + 1;
  auto& own_error = own_error_of(members_.own_block(), round);
  fill_failure_record(own_error, fields_of(error.code, error.info));
  own_error.round.store(round, std::memory_order_release);
  auto empty = post;
  empty.slot = {};
  empty.offset = empty.bytes = 0;
  empty.inlined = {};
  return arrive(empty, arrival_failed);
}

bool Rounds::advance() noexcept {
  bool moved = false;
  while (passed() < posted_) {
    auto const next = passed() + 1;
    while (seen_ < members_.size() && (seen_ == members_.rank() || arrivals_.reached(seen_, next))) ++seen_;
    if (seen_ < members_.size()) break;
    auto const verdict = arrivals_.evaluate(next);
    if (verdict == Verdict::mismatch) {
      fail_mismatch(next);
      break;
    }
    auto const bit = std::uint64_t{1} << next % 64;
    with_errors_ = verdict == Verdict::pass_failed ? with_errors_ | bit : with_errors_ & ~bit;
    passed_.store(next, std::memory_order_relaxed);
    seen_ = 0;
    moved = true;
  }
  return moved;
}

/// A decision is about a round after all that have passed. So a member that sees a decision can pass all rounds before
/// the decision's.
bool Rounds::is_over(std::uint64_t round) noexcept {
  if (has_passed(round)) return true;
  advance();
  if (has_passed(round)) return true;
  if (!decision_.has_failed()) return false;
  advance();
  return true;
}

Outcome Rounds::outcome(std::uint64_t round) const noexcept {
  bool const had_errors = (with_errors_ >> round % 64 & 1) != 0;
  return had_errors && passed() - round < 64 ? Outcome::passed_failed : Outcome::passed;
}

// ---------------------------------------------------------------- failing

void Rounds::fail_mismatch(std::uint64_t round) noexcept {
  auto const deciding = decision_.deciding();
  if (decision_.has_failed()) return;
  decision_.write_reason(errors_.blame_for_mismatch(round));
  decision_.set_once({round, members_.rank(), Verdict::mismatch});
  members_.ring_others();
}

bool Rounds::veto(Decision decision, std::vector<int> const& members) const noexcept {
  for (int const member : members) {
    auto& word = line_of(members_.block_of(member), decision.round).round;
    auto seen = atomic_ops::published(word);
    while (!arrivals_.reached(member, decision.round)) {
      if (!ArrivalWord{seen}.vetoed()) {
        CROSSRANK_CRASH_POINT("node.group.failing.begun");
        if (!atomic_ops::set_once(word, seen, ArrivalWord::of(decision).word)) continue;
        CROSSRANK_CRASH_POINT("node.group.failing.vetoed");
        seen = ArrivalWord::of(decision).word;
      }
      // The veto may be that of a member that has died before it set the decision.
      decision_.set_once(ArrivalWord{seen}.decision());
      return true;
    }
  }
  return false;
}

std::uint64_t Rounds::first_open_round() const noexcept {
  // A member is at most two rounds ahead of another one. Lines that say more hold values that no member has written.
  constexpr int max_ahead = 64;
  auto round = passed() + 1;
  auto const all_have_reached = [&] {
    for (int member = 0; member < members_.size(); ++member) {
      if (!arrivals_.reached(member, round)) return false;
    }
    return true;
  };
  for (int ahead = 0; ahead < max_ahead && all_have_reached(); ++ahead) ++round;
  return round;
}

void Rounds::fail(Blame const& blame, WaitCondition* condition) noexcept {
  auto all = all_ranks(members_.size());
  auto const& awaited = blame.awaited.empty() ? blame.members : blame.awaited;
  auto const still_waits = [&] {
    return condition == nullptr ||
           std::any_of(awaited.begin(), awaited.end(), [&](int member) { return condition->waits_for(member); });
  };
  for (int attempt = 1;; ++attempt) {
    // Another thread may be in a call of this member, so nothing of that call's state is changed here.
    auto const deciding = decision_.deciding();
    Decision const next{first_open_round(), members_.rank(), blame.verdict};
    if (decision_.has_failed() || !still_waits()) return;
    decision_.write_reason(blame);
    // A member that waits for a message may blame a peer that has arrived at the round. Then it vetoes another arrival.
    if (veto(next, awaited) || (still_waits() && veto(next, all))) break;
    // An attempt without a veto has found that all members have arrived, so that the round passes. No member is far
    // ahead of this one. If this does not end, the lines hold values that no member has written.
    constexpr int max_attempts = 64;
    if (attempt == max_attempts) {
      decision_.set_once(next);
      break;
    }
  }
  members_.ring_others();
  // Users see the failure in the errors that the calls of all ranks throw, so this event is only informative.
  log_event(LogLevel::info, "a group has failed", {{"group", members_.name()}, {"why", blame.text}});
}

}  // namespace crossrank::node
