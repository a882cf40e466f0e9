#include "lib/node/group/group.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "lib/node/memory/corruption.hpp"
#include "lib/node/liveness/failure_record.hpp"
#include "lib/node/liveness/root_cause.hpp"
#include "lib/core/rank_list.hpp"

/// What the members of a group are told when a round fails: the same on all of them.
namespace crossrank::node {

std::span<std::byte const> Group::payload(int member, Arrival const& arrival) const {
  if ((arrival.flags & arrival_inline) != 0) {
    auto const bytes = std::min<std::size_t>(arrival.bytes, Arrival::inline_bytes);
    return {reinterpret_cast<std::byte const*>(arrival.inlined), bytes};
  }
  return payload(member, arrival.offset, arrival.bytes);
}

std::span<std::byte const> Group::payload(int member, std::uint64_t offset, std::uint64_t bytes) const {
  auto const all = comm_->arena_bytes();
  if (offset > all || bytes > all - offset) {
    throw FormatError({.operation = "read a publication",
                       .message = "a payload outside its arena",
                       .expected = "at most " + std::to_string(all) + " bytes",
                       .got = std::to_string(bytes) + " bytes at " + std::to_string(offset),
                       .resource = "arena of rank " + std::to_string(node_rank(member)),
                       .failed_ranks = {member},
                       .section = "arrival"});
  }
  return {comm_->arena_of(node_rank(member)) + offset, bytes};
}

void Group::fail_corrupt(std::string operation, std::string field, std::string expected, std::string got) const {
  throw_corrupt({.operation = std::move(operation),
                 .place = block_text(block_),
                 .field = std::move(field),
                 .expected = std::move(expected),
                 .got = std::move(got)});
}

void Group::throw_if_failed(std::string_view operation) const {
  if (has_failed()) throw_decision(decision(), operation);
}

void Group::fill_failure(std::vector<int> const& blamed, std::string text, std::string const& status) noexcept {
  auto& own = blocks_[rank_];
  own.root_cause.state.store(RootCauseRecord::unset, std::memory_order_relaxed);
  for (int const member : blamed) {
    auto const earlier = read_cause(comm_->record(node_rank(member)).cause);
    if (!earlier) continue;
    // What came first is not cut off, however long the error text has grown on its way here.
    auto const cause = "; root cause: " + earlier->sentence();
    text.resize(std::min(text.size(), FailureRecord::most_text - cause.size()));
    text += cause;
    set_cause(own.root_cause, *earlier);
    break;
  }
  // Unless there was something before: what is set stays.
  set_cause(own.root_cause, {static_cast<int>(comm_->record(node_rank(blamed.front())).global_rank), status});
  fill_failure_record(own.failure, {.code = ErrorCode::peer_lost, .failed_ranks = blamed, .message = text});
}

void Group::note_cause(Decision decision) const noexcept {
  if (!is_sound(decision)) return;
  if (auto const cause = read_cause(blocks_[decision.decider].root_cause)) set_cause(comm_->own_record().cause, *cause);
}

void Group::throw_decision(Decision decision, std::string_view operation) const {
  if (!is_sound(decision)) {
    fail_corrupt(std::string(operation), "decision", "a failure that a member has decided",
                 "verdict " + std::to_string(static_cast<unsigned>(decision.verdict)) + " by member " +
                     std::to_string(decision.decider));
  }
  note_cause(decision);
  auto failure = read_failure_record(blocks_[decision.decider].failure);
  ErrorInfo info{.operation = std::string(operation),
                 .message = "round " + std::to_string(decision.round) + ": " + failure.info.message,
                 .group = name_,
                 .rank = rank_,
                 .world_size = size_};
  info.failed_ranks = std::move(failure.info.failed_ranks);
  std::erase_if(info.failed_ranks, [this](int member) { return member >= size_; });
  std::vector<int> arrived;
  for (int member = 0; member < size_; ++member) {
    if (posted(member, decision.round)) arrived.push_back(member);
  }
  for (int const member : info.failed_ranks)
    info.details.push_back("rank " + std::to_string(member) + ": " + comm_->describe(node_rank(member)));
  info.details.push_back("arrived at round " + std::to_string(decision.round) + ": " +
                         (arrived.empty() ? "nobody" : format_ranks(arrived)));
  if (auto const cause = read_cause(blocks_[decision.decider].root_cause))
    info.details.push_back("root cause: " + cause->sentence());
  info.details.push_back("decided by rank " + std::to_string(decision.decider) +
                         "; all ranks of the group got this verdict");
  info.group_usable = false;
  switch (decision.verdict) {
    case Verdict::timeout:
      info.hint = "look at what the named ranks are doing, or raise the timeout";
      throw TimeoutError(std::move(info));
    case Verdict::mismatch: info.hint = mismatch_hint; throw MismatchError(std::move(info));
    default:
      info.hint = "restart the job; the output of the named ranks says why they ended";
      throw PeerLostError(std::move(info));
  }
}

std::vector<RankError> Group::member_errors(std::uint64_t round) const {
  std::vector<RankError> errors;
  for (int member = 0; member < size_; ++member) {
    // Not the arrival lines: a member that has gone on may have written those anew. The end of a range tells of its
    // start.
    auto const told = [&](std::uint64_t of) {
      return blocks_[member].own_error[of & 1].round.load(std::memory_order_acquire) == of;
    };
    bool const at_start =
        call_of(rank_, round).op_kind == static_cast<int>(spi::OpKind::range_close) && told(round - 1);
    if (!told(round) && !at_start) continue;
    auto const& record = blocks_[member].own_error[(told(round) ? round : round - 1) & 1];
    errors.push_back({.rank = member, .error = read_failure_record(record)});
  }
  return errors;
}

RemoteError Group::remote_error(std::uint64_t round, std::string_view operation) const {
  return crossrank::remote_error(
      {.operation = std::string(operation), .group = name_, .rank = rank_, .world_size = size_}, member_errors(round));
}

}  // namespace crossrank::node
