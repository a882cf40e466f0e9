#include "collectives/shm/shm_transport.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/node/peer_copy.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::shm {
namespace {

using spi::Ticket;
using spi::Verb;

constexpr std::size_t short_copy = std::size_t{8} << 10;

}  // namespace

ShmTransport::ShmTransport(std::shared_ptr<node::Group> group, std::vector<int> global_ranks,
                           spi::Patience const& patience)
    : group_(std::move(group)),
      global_ranks_(std::move(global_ranks)),
      node_ranks_(static_cast<std::size_t>(group_->size())),
      ring_(group_->domain().arena()),
      sent_(static_cast<std::size_t>(group_->size())),
      patience_(patience) {
  std::iota(node_ranks_.begin(), node_ranks_.end(), 0);
}

ShmTransport::~ShmTransport() {
  if (!group_->domain().is_own_process()) return;
  auto& arena = group_->domain().arena();
  for (auto const& slot : ring_.slots()) {
    // Who closes has met all others after their last read. Who just drops the handle may be ahead of them.
    if (closed_) {
      arena.release(slot);
    } else {
      arena.release_when(group_->everyone_left(), slot);
    }
  }
  // A message may be taken after all have closed: by a receive that was posted before.
  for (int dst = 0; dst < world_size(); ++dst) {
    release_sent_slots(dst);
    for (auto const& held : sent_[static_cast<std::size_t>(dst)])
      arena.release_when(group_->everyone_left(), held.slot);
  }
}

// ---------------------------------------------------------------- operations under way

ShmTransport::Operation& ShmTransport::operation(Ticket ticket) {
  return operations_[static_cast<std::size_t>(ticket)];
}

void ShmTransport::Operation::clear() noexcept {
  kind = Kind::unused;
  settled = false;
  step = 0;
  counts.clear();
  if (source.owner) source.owner.reset();
  if (sink.owner) sink.owner.reset();
  if (staged) staged.reset();
  if (failure) failure = nullptr;
}

Ticket ShmTransport::begin(Kind kind, Posted const& posted) {
  if (free_operations_.empty()) {
    free_operations_.push_back(static_cast<std::uint32_t>(operations_.size()));
    operations_.emplace_back();
  }
  auto const index = free_operations_.back();
  free_operations_.pop_back();
  operations_[index].kind = kind;
  operations_[index].posted = posted;
  return static_cast<Ticket>(index);
}

void ShmTransport::drop(Ticket ticket) noexcept {
  auto& op = operation(ticket);
  if (op.kind == Kind::staged) --staged_under_way_;
  op.clear();
  free_operations_.push_back(static_cast<std::uint32_t>(ticket));
}

/// A message that could not go yet, or has not come.
struct ShmTransport::ChannelCondition final : node::Group::Condition {
  bool done() override {
    owner.drive_collectives();
    // All of them: the peer may itself wait for a message that this rank has posted and not sent yet.
    for (auto const& op : owner.operations_) {
      if (is_message(op) && !op.settled) owner.advance_messages(op.kind, op.peer);
    }
    return operation.settled;
  }
  bool waits_for(int member) override { return member == operation.peer; }
  ShmTransport& owner;
  Operation& operation;

  ChannelCondition(ShmTransport& its_owner, Operation& its_operation) : owner(its_owner), operation(its_operation) {}
};

char const* ShmTransport::name_of(Operation const& op) noexcept {
  static constexpr char const* names[] = {"", "barrier", "broadcast", "all_gatherv", "", "", "send", "recv"};
  bool const known = op.kind != Kind::reduce && op.kind != Kind::staged;
  return known ? names[static_cast<std::size_t>(op.kind)] : spi::to_string(op.signature.verb);
}

bool ShmTransport::has_ended(Operation& op) {
  if (op.settled) return true;
  if (is_message(op)) {
    ChannelCondition condition(*this, op);
    if (condition.done()) return true;
    group_->fail_if_lost(condition);
    group_->throw_if_failed(name_of(op));
    return false;
  }
  return op.kind == Kind::staged ? staged_has_ended(op) : group_->test(op.posted.round, name_of(op));
}

bool ShmTransport::test(Ticket ticket) {
  auto& op = operation(ticket);
  try {
    group_->domain().require_own_process(name_of(op));
    if (!has_ended(op)) return false;
    complete(op, patience_);
  } catch (...) {
    drop(ticket);
    throw;
  }
  drop(ticket);
  return true;
}

void ShmTransport::wait(Ticket ticket, spi::Patience const& patience) {
  try {
    auto& op = operation(ticket);
    group_->domain().require_own_process(name_of(op));
    complete(op, patience);
  } catch (...) {
    drop(ticket);
    throw;
  }
  drop(ticket);
}

void ShmTransport::complete(Operation& op, spi::Patience const& patience) {
  if (!op.settled && is_message(op)) {
    ChannelCondition condition(*this, op);
    if (!condition.done()) group_->wait_for(condition, patience, name_of(op));
  } else if (!op.settled && op.kind == Kind::staged) {
    complete_staged(op, patience);
  } else if (!op.settled) {
    op.settled = true;
    if (group_->wait(op.posted.round, patience, name_of(op)) == node::Outcome::passed_failed) {
      throw group_->remote_error(op.posted.round, name_of(op));
    }
    finish(op);
  }
  if (op.failure) std::rethrow_exception(op.failure);
}

/// Ends the collectives under way before the next one begins: after that, peers write their lines and payloads anew.
void ShmTransport::settle_collectives() {
  if (operations_.size() == free_operations_.size()) return;
  for (auto& op : operations_) {
    if (op.kind == Kind::unused || is_message(op) || op.settled) continue;
    try {
      complete(op, patience_);
    } catch (...) {
      op.failure = std::current_exception();  // thrown where that operation is tested or waited for
    }
  }
}

void ShmTransport::cancel(Ticket ticket, std::string_view why) noexcept {
  auto const& op = operation(ticket);
  // A message that has not gone or come leaves no trace; an arrival cannot be taken back without the others.
  if (!is_message(op) && !op.settled) {
    auto const said = "rank " + std::to_string(rank()) + " cancelled its " + name_of(op);
    group_->abort(why.empty() ? said : why);
  }
  drop(ticket);
}

void ShmTransport::require_open(char const* operation) const {
  group_->domain().require_own_process(operation);
  if (closed_)
    throw UsageError({.operation = operation,
                      .message = "the group is closed",
                      .group = name(),
                      .rank = rank(),
                      .world_size = world_size()});
}

// ---------------------------------------------------------------- collectives

ShmTransport::Posted ShmTransport::post_round(spi::Signature signature, std::span<std::byte const> bytes, int root,
                                              std::byte* also_to, platform::Stores results) {
  require_open(spi::to_string(signature.verb));
  settle_collectives();
  node::Post post{.verb = signature.verb, .digest = signature.digest, .root = root, .notes = signature.notes};
  Stored stored;
  node::StepCopies copies(group_->domain());
  if (bytes.size() <= node::Arrival::inline_bytes) {
    post.inlined = bytes;
  } else {
    auto const area = take_area(post, bytes.size(), stored);
    copies.add(area.at, bytes.data(), bytes.size(), area.stores);
  }
  bool const has_own = also_to != nullptr && also_to != bytes.data();
  // A short copy is made while the others are on their way; a long one is cheaper together with the first.
  bool const afterwards = has_own && bytes.size() < short_copy;
  if (has_own && !afterwards) copies.add(also_to, bytes.data(), bytes.size(), results);
  copies.run();
  auto const round = arrive(post);
  if (afterwards) copies.add(also_to, bytes.data(), bytes.size(), results);
  copies.run();
  return {.round = round, .stored = stored};
}

/// Room for `bytes` that the post will announce; where there is none, this rank arrives without, so that the others do
/// not wait for it.
Area ShmTransport::take_area(node::Post& post, std::size_t bytes, Stored& stored) {
  if (bytes >= node::StoringSpeed::least_bytes)
    stored = {.step = storing_speed_.next(), .bytes = bytes, .began = platform::system().now()};
  try {
    auto const region = ring_.take(bytes);
    post.slot = region.slot;
    post.offset = region.offset;
    post.bytes = bytes;
    return {.at = group_->domain().arena().at(region.slot) + (region.offset - region.slot.offset),
            .stores = stored.step.stores};
  } catch (Error const& e) {
    auto const round = group_->post_error(post, {.type = to_string(e.code()), .text = e.what()}, patience_);
    static_cast<void>(group_->wait(round, patience_, spi::to_string(post.verb)));
    throw;
  }
}

void ShmTransport::note_speed(Stored const& stored) noexcept {
  if (stored.step.counts) storing_speed_.note(stored.step, stored.bytes, platform::system().now() - stored.began);
}

/// A post returns when all earlier rounds are decided; what was read in round r was read by all once r + 1 was.
std::uint64_t ShmTransport::arrive(node::Post const& post) {
  auto const round = group_->post(post, patience_);
  ring_.read_in(round);
  ring_.free_before(round - 1);
  return round;
}

Ticket ShmTransport::post_barrier(spi::Signature signature) {
  return begin(Kind::barrier, post_round(signature, {}, 0));
}

void ShmTransport::finish(Operation& op) {
  if (op.kind == Kind::broadcast && op.peer != rank()) read_payload(op, op.peer, op.sink.bytes);
  if (op.kind == Kind::all_gatherv) finish_all_gatherv(op);
  if (op.kind == Kind::reduce) finish_reduce(op);
  note_speed(op.posted.stored);
}

void ShmTransport::finish_all_gatherv(Operation& op) {
  std::size_t offset = 0;
  for (int member = 0; member < world_size(); ++member) {
    auto const bytes = op.counts[static_cast<std::size_t>(member)];
    auto const to = op.sink.bytes.subspan(offset, bytes);
    offset += bytes;
    if (member != rank()) read_payload(op, member, to);
  }
}

/// `MismatchError` when a rank sent another number of bytes than this one was told.
void ShmTransport::require_size(int member, std::size_t got, std::size_t expected) const {
  if (got == expected) return;
  throw MismatchError({.operation = "receive",
                       .message = "rank " + std::to_string(member) + " sent another number of bytes than was agreed",
                       .expected = std::to_string(expected),
                       .got = std::to_string(got),
                       .group = name(),
                       .rank = rank(),
                       .world_size = world_size(),
                       .culprits = {member}});
}

void ShmTransport::read_payload(Operation const& op, int member, std::span<std::byte> to) {
  auto const payload = group_->payload(member, group_->arrival(member, op.posted.round));
  require_size(member, payload.size(), to.size());
  node::StepCopies copies(group_->domain());
  copies.add(to.data(), payload.data(), payload.size(), op.results);
  copies.run();
}

/// Measured where two cores share 32 MiB: what is touched there by all ranks of a node in one call stays from call to
/// call up to about 20 MiB, all_to_all of 2 MiB between four ranks took 0.47 ms past the caches and 0.84 through them,
/// and all_gather of 4 MiB between two 0.32 and 0.21.
platform::Stores ShmTransport::stores_of_results(std::span<std::byte const> in, std::span<std::byte const> out) const {
  bool const in_place = in.data() == out.data();
  auto const touched = out.size() + (in_place ? 0 : in.size()) + std::min(in.size(), StagingRing::most_by_use);
  return touched > platform::streaming_threshold(group_->domain().ranks()) ? platform::Stores::streaming
                                                                           : platform::Stores::normal;
}

// ---------------------------------------------------------------- groups

std::shared_ptr<spi::Transport> ShmTransport::split(spi::Signature signature, std::span<int const> members,
                                                    std::string name, spi::Patience const& patience) {
  require_open("split");
  settle_collectives();
  std::vector<int> const list(members.begin(), members.end());
  auto group = group_->split(list, std::move(name), signature, patience);
  if (!group) return nullptr;
  std::vector<int> global;
  for (int const member : list) global.push_back(global_ranks_[static_cast<std::size_t>(member)]);
  return std::make_shared<ShmTransport>(std::move(group), std::move(global), patience_);
}

void ShmTransport::abort(std::string_view why) noexcept { group_->abort(why); }

void ShmTransport::keep_alive() noexcept { group_->progress(); }

void ShmTransport::enter_user_code(int change) noexcept {
  if (group_->domain().is_own_process())
    group_->domain().own_record().in_user_code.fetch_add(static_cast<std::uint32_t>(change), std::memory_order_relaxed);
}

void ShmTransport::close(spi::Patience const& patience) {
  if (closed_) return;
  group_->domain().require_own_process("close");
  settle_collectives();
  closed_ = true;
  auto const round = group_->post({.verb = Verb::close}, patience);
  static_cast<void>(group_->wait(round, patience, "close"));
  group_->closed();
}

}  // namespace crossrank::shm
