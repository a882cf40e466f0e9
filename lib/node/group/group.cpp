#include "lib/node/group/group.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "lib/core/at_rank.hpp"
#include "lib/node/wait/lost_members.hpp"
#include "lib/node/wait/peer_watchdog.hpp"
#include "lib/platform/crash_point.hpp"

namespace crossrank {

spi::NodeMemory::~NodeMemory() = default;

namespace node {
namespace {

/// Returns how a launcher's report begins about a rank that is to blame.
char const* status_prefix(Verdict verdict) noexcept {
  switch (verdict) {
    case Verdict::timeout: return "was too late: ";
    case Verdict::mismatch: return "disagreed with others: ";
    default: return "gave up: ";
  }
}

}  // namespace

std::shared_ptr<Group> group_of(std::shared_ptr<spi::NodeMemory> const& memory) noexcept {
  return std::dynamic_pointer_cast<Group>(memory);
}

Group::Group(std::shared_ptr<NodeComm> comm, std::uint32_t block, std::string name, int rank,
             std::vector<int> node_ranks)
    : members_(std::move(comm), block, std::move(name), rank, std::move(node_ranks)),
      arrivals_(members_),
      decision_(members_),
      errors_(members_, arrivals_, decision_),
      rounds_(members_, arrivals_, decision_, errors_),
      wait_(members_, rounds_, decision_, errors_) {
  members_.comm().add_open_group();
}

std::shared_ptr<Group> Group::of_node(std::shared_ptr<NodeComm> comm, std::string name) {
  int const rank = comm->rank();
  auto all = all_ranks(comm->ranks());
  comm->blocks().require_group(0, all, {}, "connect");
  return std::shared_ptr<Group>(new Group(std::move(comm), 0, std::move(name), rank, std::move(all)));
}

void Group::closed() noexcept {
  if (!std::exchange(closed_, true)) comm().remove_open_group();
}

Group::~Group() {
  if (!closed_) comm().remove_open_group();
  // After this rank has left its node, the block may belong to another group.
  if (!comm().is_own_process() || comm().has_departed(comm().rank())) return;
  if (!closed_) {
    bool const unwinding = std::uncaught_exceptions() > 0;
    members_.announce_drop(unwinding ? HandleStatus::dropped_by_exception : HandleStatus::dropped);
  }
  members_.leave();
}

// ---------------------------------------------------------------- splitting

namespace {

/// The block of a new group. Given back unless the members agree to use it.
struct NewBlock {
  NewBlock(NodeComm& its_comm, GroupBlocks::Made const& its_block) : comm(its_comm), block(its_block) {}
  ~NewBlock() {
    if (!in_use) comm.blocks().discard(block);
  }
  NewBlock(NewBlock const&) = delete;
  NewBlock& operator=(NewBlock const&) = delete;

  NodeComm& comm;
  GroupBlocks::Made block;
  bool in_use = false;
};

}  // namespace

std::shared_ptr<Group> Group::split(std::vector<int> const& members, std::string name, spi::Signature signature,
                                    spi::TimeoutPolicy const& timeout_policy) {
  comm().require_own_process("split");
  auto const found = std::find(members.begin(), members.end(), rank());
  Post arrival{.op_kind = spi::OpKind::split, .digest = signature.digest, .arguments = signature.arguments};
  std::optional<NewBlock> made;
  if (found != members.end() && found == members.begin()) {
    try {
      made.emplace(comm(), comm().blocks().make(members_.node_ranks_of(members), name,
                                                {.parent = members_.block(), .round = rounds_.posted() + 1}));
      arrival.inlined = std::as_bytes(std::span(&made->block.index, 1));
    } catch (...) {
      wait(post_error(arrival, describe_exception(std::current_exception()), timeout_policy), timeout_policy, "split");
      throw;
    }
  }
  CROSSRANK_CRASH_POINT("node.group.block_made");
  auto const new_rank = static_cast<int>(found - members.begin());
  auto const join = [&](std::uint32_t block) {
    auto on_node = members_.node_ranks_of(members);
    return std::shared_ptr<Group>(new Group(shared_comm(), block, name, new_rank, std::move(on_node)));
  };
  auto const round = post(arrival, timeout_policy);
  auto outcome = Outcome::passed_failed;
  try {
    outcome = wait(round, timeout_policy, "split");
  } catch (...) {
    // The other members may join the new group, unless this one has failed. They learn that this member has left.
    if (made && !has_failed()) {
      made->in_use = true;
      static_cast<void>(join(made->block.index));
    }
    throw;
  }
  if (outcome == Outcome::passed_failed) {
    auto const errors = errors_.member_errors(round);
    // If one rank has no space for the new group, no rank has that group.
    if (!errors.empty() && errors.front().error.code == ErrorCode::unavailable)
      throw UnavailableError(remote_error(round, "split").info());
    throw remote_error(round, "split");
  }
  if (made) made->in_use = true;
  if (members.empty()) return nullptr;
  std::uint32_t block = 0;
  std::memcpy(&block, this->arrival(members.front(), round).inlined, sizeof block);
  comm().blocks().require_group(block, members_.node_ranks_of(members), {.parent = members_.block(), .round = round},
                                "split");
  return join(block);
}

// ---------------------------------------------------------------- rounds

void Group::await_own_rounds(spi::TimeoutPolicy const& timeout_policy, spi::OpKind op_kind) {
  if (!rounds_.has_passed(rounds_.posted())) wait(rounds_.posted(), timeout_policy, spi::to_string(op_kind));
  throw_if_failed(spi::to_string(op_kind));
}

std::uint64_t Group::post(Post const& post, spi::TimeoutPolicy const& timeout_policy) {
  if (!comm().is_own_process()) comm().require_own_process(spi::to_string(post.op_kind));
  await_own_rounds(timeout_policy, post.op_kind);
  return rounds_.arrive(post);
}

std::uint64_t Group::post_error(Post const& post, ErrorRecord const& error, spi::TimeoutPolicy const& timeout_policy) {
  await_own_rounds(timeout_policy, post.op_kind);
  return rounds_.arrive_with_error(post, error);
}

std::uint64_t Group::post_close(std::uint64_t open_round, std::uint64_t range,
                                spi::TimeoutPolicy const& timeout_policy) {
  Post const closing{.op_kind = spi::OpKind::range_close, .digest = range};
  return rounds_.posted() == open_round && !decision_.has_failed() ? rounds_.arrive(closing)
                                                                   : post(closing, timeout_policy);
}

Outcome Group::wait(std::uint64_t round, spi::TimeoutPolicy const& timeout_policy, std::string_view operation) {
  wait_.wait_for_round(round, timeout_policy, operation);
  return rounds_.outcome(round);
}

std::optional<Outcome> Group::poll(std::uint64_t round) noexcept {
  rounds_.advance();
  if (!rounds_.has_passed(round)) return std::nullopt;
  return rounds_.outcome(round);
}

RemoteError Group::remote_error(std::uint64_t round, std::string_view operation) const {
  auto const errors = errors_.member_errors(round);
  if (!errors.empty()) note_peer_error(errors.front().rank);
  return crossrank::remote_error(
      {.operation = std::string(operation), .group = name(), .rank = rank(), .world_size = size()}, errors);
}

void Group::note_peer_error(int member) const noexcept {
  if (member == rank() || !comm().is_own_process()) return;
  comm().own_record().peer_error.store(members_.record(member).global_rank + 1, std::memory_order_relaxed);
}

std::span<std::byte const> Group::payload(int member, Arrival const& arrival) const {
  if ((arrival.flags & arrival_inline) != 0) {
    auto const bytes = std::min<std::size_t>(arrival.bytes, Arrival::inline_bytes);
    return {reinterpret_cast<std::byte const*>(arrival.inlined), bytes};
  }
  return payload(member, arrival.offset, arrival.bytes);
}

// ---------------------------------------------------------------- failing

void Group::abort(std::string_view why) noexcept { fail(Verdict::aborted, why, {rank()}); }

void Group::fail(Verdict verdict, std::string_view why, std::vector<int> members) noexcept {
  if (!comm().is_own_process()) return;
  std::string const text(why);
  auto const status = status_prefix(verdict) + text;
  rounds_.fail({.verdict = verdict, .members = std::move(members), .text = text, .status = status}, nullptr);
  decision_.adopt_root_cause();
}

void Group::throw_if_failed(std::string_view operation) const {
  if (decision_.has_failed()) errors_.throw_decision(operation);
}

PeerWatchdog Group::watchdog(spi::TimeoutPolicy const& timeout_policy, std::string_view operation) {
  return {members_, rounds_, timeout_policy, operation};
}

void Group::fail_if_lost(WaitCondition& condition) noexcept { node::fail_if_lost(members_, rounds_, condition); }

void Group::fail_corrupt(std::string operation, std::string field, std::string expected, std::string got) const {
  errors_.throw_corrupt(std::move(operation), std::move(field), std::move(expected), std::move(got));
}

void Group::note_message(FlightOperation note) const noexcept {
  if (!records_messages_) return;
  note.block = members_.block();
  comm().note(note);
}

}  // namespace node
}  // namespace crossrank
