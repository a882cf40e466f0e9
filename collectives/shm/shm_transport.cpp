#include "collectives/shm/shm_transport.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/node/bulk_copy.hpp"

namespace crossrank::shm {
namespace {

using spi::Ticket;
using spi::Verb;

}  // namespace

ShmTransport::ShmTransport(std::shared_ptr<node::Group> group, std::vector<int> global_ranks,
                           spi::Patience const& patience)
    : group_(std::move(group)),
      global_ranks_(std::move(global_ranks)),
      node_ranks_(static_cast<std::size_t>(group_->size())),
      sent_(static_cast<std::size_t>(group_->size())),
      patience_(patience) {
  std::iota(node_ranks_.begin(), node_ranks_.end(), 0);
}

ShmTransport::~ShmTransport() {
  if (!group_->domain().is_own_process()) return;
  std::vector<node::Slot> slots;
  for (auto const& held : read_later_) slots.push_back(held.slot);
  for (auto const& channel : sent_) {
    for (auto const& held : channel) slots.push_back(held.slot);
  }
  auto& arena = group_->domain().arena();
  for (auto const& slot : slots) {
    // Who closes has met all others after their last read. Who just drops the handle may be ahead of them.
    if (closed_) {
      arena.release(slot);
    } else {
      arena.release_when(group_->everyone_left(), slot);
    }
  }
}

// ---------------------------------------------------------------- operations under way

ShmTransport::Operation& ShmTransport::operation(Ticket ticket) {
  return operations_[static_cast<std::size_t>(ticket)];
}

Ticket ShmTransport::keep(Operation operation) {
  if (free_operations_.empty()) {
    free_operations_.push_back(static_cast<std::uint32_t>(operations_.size()));
    operations_.emplace_back();
  }
  auto const index = free_operations_.back();
  free_operations_.pop_back();
  operations_[index] = std::move(operation);
  return static_cast<Ticket>(index);
}

void ShmTransport::drop(Ticket ticket) noexcept {
  hold_areas(operation(ticket));
  operation(ticket) = Operation{};
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
  return op.kind == Kind::staged ? staged_has_ended(op) : group_->test(op.round, name_of(op));
}

bool ShmTransport::test(Ticket ticket) {
  auto& op = operation(ticket);
  try {
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
    complete(operation(ticket), patience);
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
    if (group_->wait(op.round, patience, name_of(op)) == node::Outcome::passed_failed) {
      throw group_->remote_error(op.round, name_of(op));
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

void ShmTransport::cancel(Ticket ticket) noexcept {
  auto const& op = operation(ticket);
  // A message that has not gone or come leaves no trace; an arrival cannot be taken back without the others.
  if (!is_message(op) && !op.settled) group_->abort("rank " + std::to_string(rank()) + " cancelled its " + name_of(op));
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

std::uint64_t ShmTransport::post_round(spi::Signature signature, std::span<std::byte const> bytes, int root) {
  require_open(spi::to_string(signature.verb));
  settle_collectives();
  node::Post post{.verb = signature.verb, .digest = signature.digest, .root = root};
  std::optional<node::Slot> slot;
  if (bytes.size() <= node::Arrival::inline_bytes) {
    post.inlined = bytes;
  } else {
    slot = allocate_or_tell(post, bytes.size());
    node::bulk_copy(group_->domain(), group_->domain().arena().at(*slot), bytes.data(), bytes.size());
    post.slot = *slot;
    post.offset = slot->offset;
    post.bytes = bytes.size();
  }
  auto const round = group_->post(post, patience_);
  release_read_slots();
  if (slot) read_later_.push_back({*slot, round});
  return round;
}

/// A slot for a payload; where there is none, this rank arrives without, so that the others do not wait for it.
node::Slot ShmTransport::allocate_or_tell(node::Post const& post, std::size_t bytes) {
  try {
    return group_->domain().arena().allocate(bytes);
  } catch (Error const& e) {
    auto const round = group_->post_error(post, {.type = "IoError", .text = e.what()}, patience_);
    static_cast<void>(group_->wait(round, patience_, spi::to_string(post.verb)));
    throw;
  }
}

/// `post` has returned, so all earlier rounds are decided; a payload of round r was read by all once r + 1 was.
void ShmTransport::release_read_slots() noexcept {
  auto const posted_before = group_->last_posted() - 1;
  while (!read_later_.empty() && read_later_.front().until < posted_before) {
    group_->domain().arena().release(read_later_.front().slot);
    read_later_.pop_front();
  }
}

Ticket ShmTransport::post_barrier(spi::Signature signature) {
  return keep({.kind = Kind::barrier, .round = post_round(signature, {}, 0)});
}

void ShmTransport::finish(Operation& op) {
  if (op.kind == Kind::broadcast && op.peer != rank()) read_payload(op.peer, op.round, op.sink.bytes);
  if (op.kind == Kind::all_gatherv) finish_all_gatherv(op);
  if (op.kind == Kind::reduce) finish_reduce(op);
}

void ShmTransport::finish_all_gatherv(Operation& op) {
  std::size_t offset = 0;
  for (int member = 0; member < world_size(); ++member) {
    auto const bytes = op.counts[static_cast<std::size_t>(member)];
    auto const to = op.sink.bytes.subspan(offset, bytes);
    offset += bytes;
    if (member != rank()) {
      read_payload(member, op.round, to);
    } else if (to.data() != op.source.bytes.data()) {
      node::bulk_copy_out(group_->domain(), to.data(), op.source.bytes.data(), bytes, op.sink.bytes.size());
    }
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

void ShmTransport::read_payload(int member, std::uint64_t round, std::span<std::byte> to) {
  auto const payload = group_->payload(member, group_->arrival(member, round));
  require_size(member, payload.size(), to.size());
  node::bulk_copy_out(group_->domain(), to.data(), payload.data(), payload.size(), payload.size());
}

// ---------------------------------------------------------------- messages

Ticket ShmTransport::post_send(spi::Source bytes, int dst, std::uint32_t tag) {
  require_open("send");
  group_->throw_if_failed("send");
  auto const ticket =
      keep({.kind = Kind::send, .sequence = ++messages_posted_, .source = std::move(bytes), .peer = dst, .tag = tag});
  note_message(operation(ticket));
  advance_messages(Kind::send, dst);
  return ticket;
}

Ticket ShmTransport::post_recv(spi::Sink bytes, int src, std::uint32_t tag) {
  require_open("recv");
  group_->throw_if_failed("recv");
  auto const ticket =
      keep({.kind = Kind::recv, .sequence = ++messages_posted_, .sink = std::move(bytes), .peer = src, .tag = tag});
  note_message(operation(ticket));
  return ticket;
}

/// With its number on the channel: those that have moved, and those posted before it.
void ShmTransport::note_message(Operation const& op) const noexcept {
  bool const sends = op.kind == Kind::send;
  auto const& channel = sends ? group_->channel(rank(), op.peer) : group_->channel(op.peer, rank());
  auto const moved = (sends ? channel.sent : channel.received).load(std::memory_order_relaxed);
  auto const under_way = std::count_if(operations_.begin(), operations_.end(), [&](Operation const& other) {
    return other.kind == op.kind && other.peer == op.peer && !other.settled;
  });
  group_->note_message({.verb = sends ? Verb::send : Verb::recv,
                        .round = moved + static_cast<std::uint64_t>(under_way),
                        .bytes = sends ? op.source.bytes.size() : op.sink.bytes.size(),
                        .peer = static_cast<std::uint32_t>(op.peer)});
}

void ShmTransport::advance_messages(Kind kind, int peer) {
  for (;;) {
    Operation* first = nullptr;
    for (auto& op : operations_) {
      if (op.kind != kind || op.peer != peer || op.settled) continue;
      if (first == nullptr || op.sequence < first->sequence) first = &op;
    }
    if (first == nullptr) return;
    try {
      if (!(kind == Kind::send ? try_send(*first) : try_recv(*first))) return;
    } catch (...) {
      first->failure = std::current_exception();
    }
    first->settled = true;
  }
}

void ShmTransport::release_sent_slots(int dst) noexcept {
  auto& channel = sent_[static_cast<std::size_t>(dst)];
  auto const taken = group_->channel(rank(), dst).received.load(std::memory_order_acquire);
  while (!channel.empty() && channel.front().until <= taken) {
    group_->domain().arena().release(channel.front().slot);
    channel.pop_front();
  }
}

bool ShmTransport::try_send(Operation& op) {
  auto& channel = group_->channel(rank(), op.peer);
  auto const sent = channel.sent.load(std::memory_order_relaxed);
  if (sent - channel.received.load(std::memory_order_seq_cst) >= node::Channel::depth) return false;
  release_sent_slots(op.peer);
  auto& message = channel.ring[sent % node::Channel::depth];
  message = {};
  message.bytes = op.source.bytes.size();
  message.tag = op.tag;
  if (!op.source.bytes.empty()) {
    auto& arena = group_->domain().arena();
    auto const slot = arena.allocate(op.source.bytes.size());
    node::bulk_copy(group_->domain(), arena.at(slot), op.source.bytes.data(), op.source.bytes.size());
    message.offset = slot.offset;
    message.slot = slot.id;
    message.generation = slot.generation;
    sent_[static_cast<std::size_t>(op.peer)].push_back({slot, sent + 1});
  }
  channel.sent.exchange(sent + 1, std::memory_order_seq_cst);
  group_->progress();
  group_->ring_member(op.peer);
  return true;
}

bool ShmTransport::try_recv(Operation& op) {
  auto& channel = group_->channel(op.peer, rank());
  auto const received = channel.received.load(std::memory_order_relaxed);
  if (channel.sent.load(std::memory_order_seq_cst) <= received) return false;
  auto const message =
      channel.ring[received % node::Channel::depth];  // one copy: the peer's bytes are checked, then used
  bool const fits = message.bytes == op.sink.bytes.size() && message.tag == op.tag;
  auto const all = group_->domain().arena_bytes();
  bool const inside = message.offset <= all && message.bytes <= all - message.offset;
  if (fits && inside && message.bytes != 0) {
    auto const* const from = group_->domain().arena_of(group_->node_rank(op.peer)) + message.offset;
    node::bulk_copy(group_->domain(), op.sink.bytes.data(), from, message.bytes);
  }
  channel.received.exchange(received + 1, std::memory_order_seq_cst);
  group_->progress();
  group_->ring_member(op.peer);
  if (fits && inside) return true;
  throw MismatchError({.operation = "recv",
                       .message = "the message from rank " + std::to_string(op.peer) + " is another than was expected",
                       .expected = std::to_string(op.sink.bytes.size()) + " bytes with tag " + std::to_string(op.tag),
                       .got = std::to_string(message.bytes) + " bytes with tag " + std::to_string(message.tag),
                       .remedy = "make both ranks agree on size, tag and order",
                       .group = name(),
                       .rank = rank(),
                       .world_size = world_size(),
                       .culprits = {op.peer}});
}

// ---------------------------------------------------------------- groups

std::shared_ptr<spi::Transport> ShmTransport::split(spi::Signature signature, std::span<int const> members,
                                                    std::string name, spi::Patience const& patience) {
  require_open("split");
  settle_collectives();
  std::vector<int> const list(members.begin(), members.end());
  auto group = group_->split(list, std::move(name), signature.digest, patience);
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
