#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/spi/error_in.hpp"
#include "collectives/spi/message_mismatch.hpp"
#include "collectives/shm/shm_transport.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/node/group/bulk_copy.hpp"
#include "lib/node/memory/corruption.hpp"
#include "lib/node/wait/peer_watchdog.hpp"

/// Messages between two ranks: each ordered pair has a ring of descriptors; payloads are in the sender's arena.
namespace crossrank::shm {

using spi::OpKind;
using spi::RequestId;

/// Waits until a message has been sent or received.
struct ShmTransport::ChannelCondition final : node::WaitCondition {
  ChannelCondition(ShmTransport& its_owner, MessageOp& its_operation) : owner(its_owner), operation(its_operation) {}

  bool done() override {
    owner.drive_collectives();
    // All messages: the peer may itself wait for one that this rank has posted and not sent yet.
    owner.advance_messages();
    return operation.completed;
  }
  bool waits_for(int member) override {
    if (!operation.is_from_any()) return member == operation.peer;
    return member != owner.rank() && (!owner.group_->has_left(member) || all_others_left());
  }
  bool any_member_suffices() override { return operation.is_from_any(); }

  [[nodiscard]] bool all_others_left() const {
    for (int member = 0; member < owner.world_size(); ++member) {
      if (member != owner.rank() && !owner.group_->has_left(member)) return false;
    }
    return true;
  }

  ShmTransport& owner;
  MessageOp& operation;
};

namespace {

/// Waits for a rank to take a message.
struct TakenBy final : node::WaitCondition {
  explicit TakenBy(int rank) : receiver(rank) {}
  bool done() override { return false; }
  bool waits_for(int member) override { return member == receiver; }
  int receiver;
};

}  // namespace

OpKind ShmTransport::MessageOp::op_kind() const noexcept {
  if (sends()) return OpKind::send;
  return is_from_any() ? OpKind::recv_any : OpKind::recv;
}

RequestId ShmTransport::begin_message(MessageOp op) {
  require_open(op.name());
  group_->throw_if_failed(op.name());
  if (free_messages_.empty()) {
    free_messages_.push_back(messages_.size());
    messages_.emplace_back();
  }
  auto const index = free_messages_.back();
  free_messages_.pop_back();
  messages_[index] = std::move(op);
  under_way_.push_back(index);
  count_message(messages_[index]);
  note_message(messages_[index]);
  return static_cast<RequestId>(index + first_message);
}

RequestId ShmTransport::post_send(spi::Source bytes, int dst, std::uint32_t tag) {
  // Else the send would succeed as long as there is space for messages.
  if (group_->has_departed(dst)) {
    TakenBy condition(dst);
    group_->fail_if_lost(condition);
  }
  auto const request_id = begin_message({.payload = std::move(bytes), .peer = dst, .tag = tag});
  advance_messages();
  return request_id;
}

RequestId ShmTransport::post_recv(spi::Sink bytes, int src, std::uint32_t tag) {
  return begin_message({.payload = std::move(bytes), .peer = src, .tag = tag});
}

RequestId ShmTransport::post_recv_any(spi::Sink bytes, std::uint32_t tag, std::shared_ptr<int> source) {
  return begin_message({.payload = std::move(bytes), .tag = tag, .source = std::move(source)});
}

std::size_t& ShmTransport::messages_like(MessageOp const& op) noexcept {
  if (op.is_from_any()) return receives_from_any_;
  return at_rank(op.sends() ? sends_under_way_ : receives_under_way_, op.peer);
}

void ShmTransport::count_message(MessageOp const& op) noexcept {
  if (messages_like(op)++ == 0 && !op.is_from_any()) ++busy_channels_;
}

void ShmTransport::uncount_message(MessageOp const& op) noexcept {
  if (--messages_like(op) == 0 && !op.is_from_any()) --busy_channels_;
}

/// Notes a message for the flight recorder, with its number on the channel, or among all that this rank receives.
void ShmTransport::note_message(MessageOp const& op) const noexcept {
  auto const* const source = std::get_if<spi::Source>(&op.payload);
  auto const* const sink = std::get_if<spi::Sink>(&op.payload);
  auto const moved = [&](int peer) {
    auto const& channel = op.sends() ? group_->channel(rank(), peer) : group_->channel(peer, rank());
    return (op.sends() ? channel.sent : channel.received).load(std::memory_order_relaxed);
  };
  std::uint64_t number = op.is_from_any() ? 0 : moved(op.peer);
  for (int peer = 0; op.is_from_any() && peer < world_size(); ++peer) number += moved(peer);
  auto const& of_peers = op.sends() ? sends_under_way_ : receives_under_way_;
  number +=
      op.is_from_any() ? std::accumulate(of_peers.begin(), of_peers.end(), std::size_t{0}) : at_rank(of_peers, op.peer);
  if (!op.sends()) number += receives_from_any_;
  group_->note_message({.op_kind = op.op_kind(),
                        .round = number,
                        .bytes = source != nullptr ? source->bytes.size() : sink->bytes.size(),
                        .peer = static_cast<std::uint32_t>(op.peer)});
}

bool ShmTransport::has_ended(MessageOp& op) {
  if (op.completed) return true;
  ChannelCondition condition(*this, op);
  if (condition.done()) return true;
  group_->fail_if_lost(condition);
  group_->throw_if_failed(op.name());
  return false;
}

void ShmTransport::watch_members(MessageOp& op, node::PeerWatchdog& watchdog) {
  ChannelCondition condition(*this, op);
  if (!condition.done()) watchdog.poll(condition);
}

void ShmTransport::complete(MessageOp& op, spi::TimeoutPolicy const& timeout_policy) {
  if (!op.completed) {
    ChannelCondition condition(*this, op);
    if (!condition.done()) {
      require_other_ranks(op);
      group_->wait_for(condition, timeout_policy, op.name());
    }
  }
  if (op.failure) std::rethrow_exception(op.failure);
}

void ShmTransport::require_other_ranks(MessageOp const& op) const {
  if (world_size() > 1) return;
  throw UsageError(
      {.operation = op.name(),
       .message = "this wait would never end: the only rank of the group waits for itself",
       .expected = op.sends() ? "a receive of this rank's messages" : "a send to this rank before the wait",
       .group = name(),
       .rank = 0,
       .world_size = 1});
}

void ShmTransport::advance_messages() {
  for (bool moved = true; moved && !under_way_.empty();) {
    moved = false;
    ++pass_;
    blocked_channels_ = 0;
    auto at = under_way_.begin();
    for (; at != under_way_.end(); ++at) {
      // Many messages may wait behind the first one of each channel.
      if (receives_from_any_ == 0 && blocked_channels_ == busy_channels_) break;
      if (!advance(messages_[*at])) continue;
      uncount_message(messages_[*at]);
      moved = true;
    }
    if (!moved) continue;
    auto const ended = [&](std::size_t index) { return messages_[index].completed; };
    under_way_.erase(std::remove_if(under_way_.begin(), at, ended), at);
  }
}

bool ShmTransport::advance(MessageOp& op) {
  // Messages of one rank to another keep their order.
  auto const move_unless_blocked = [&](std::uint64_t& blocked_in, auto const& move) {
    if (blocked_in == pass_) return false;
    op.completed = move();
    if (op.completed) return true;
    blocked_in = pass_;
    ++blocked_channels_;
    return false;
  };
  auto const receive_from = [&](int src) {
    return move_unless_blocked(at_rank(receives_blocked_, src), [&] { return try_recv(op, src); });
  };
  try {
    if (op.sends()) return move_unless_blocked(at_rank(sends_blocked_, op.peer), [&] { return try_send(op); });
    if (!op.is_from_any()) return receive_from(op.peer);
    for (int step = 0, first = first_source_; step < world_size() && !op.completed; ++step)
      (void)receive_from((first + step) % world_size());
  } catch (...) {
    op.failure = std::current_exception();
    op.completed = true;
  }
  return op.completed;
}

bool ShmTransport::try_send(MessageOp& op) {
  auto const bytes = std::get<spi::Source>(op.payload).bytes;
  auto& channel = group_->channel(rank(), op.peer);
  auto const sent = channel.sent.load(std::memory_order_relaxed);
  auto const taken = channel.received.load(std::memory_order_seq_cst);
  if (taken > sent)
    group_->fail_corrupt("send", "messages taken by rank " + std::to_string(op.peer), "at most " + std::to_string(sent),
                         std::to_string(taken));
  if (sent - taken >= node::Channel::depth) return false;
  auto& message = channel.ring[sent % node::Channel::depth];
  message = {};
  message.bytes = bytes.size();
  message.tag = op.tag;
  std::exception_ptr failure;
  if (!bytes.empty()) {
    try {
      if (!place_payload(op, bytes, sent + 1, message)) return false;
    } catch (...) {
      // The message keeps its place, so that the receiver does not take the next one for it.
      failure = std::current_exception();
      message.slot = node::Channel::not_sent;
    }
  }
  channel.sent.exchange(sent + 1, std::memory_order_seq_cst);
  group_->count_progress();
  group_->ring_member(op.peer);
  if (failure) std::rethrow_exception(failure);
  return true;
}

bool ShmTransport::place_payload(MessageOp const& op, std::span<std::byte const> bytes, std::uint64_t number,
                                 node::Channel::Message& message) {
  if (op.device_slot) {
    place_device_payload(op, number, message);
    return true;
  }
  auto const announcement = announcement_bytes(op.peer, bytes.size());
  auto const slot = place_for_message(announcement == 0 ? bytes.size() : announcement);
  if (!slot) return false;
  auto& arena = group_->comm().arena();
  node::bulk_copy(group_->comm(), arena.at(*slot), bytes.data(), bytes.size());
  message.offset = slot->offset;
  message.slot = slot->id;
  message.generation = slot->generation;
  if (announcement != 0) announce_outbox(op.peer, bytes.size(), number, *slot, message);
  arena.release_when(group_->message_taken(op.peer, number), *slot, node::Arena::Awaits::reader);
  return true;
}

std::optional<node::Slot> ShmTransport::place_for_message(std::size_t bytes) {
  auto& arena = group_->comm().arena();
  if (!arena_full_) {
    try {
      return arena.allocate(bytes, node::Arena::WhenFull::ask);
    } catch (UnavailableError const&) {  // perhaps peers have taken messages meanwhile
    }
  }
  auto const unread = arena.waiting_for_readers();
  // A wait calls this all the time.
  if (arena_full_ && unread >= arena_full_->unread && std::chrono::steady_clock::now() < arena_full_->try_again)
    return std::nullopt;
  arena_full_.reset();
  try {
    return arena.allocate(bytes, unread == 0 ? node::Arena::WhenFull::wait : node::Arena::WhenFull::ask);
  } catch (UnavailableError const&) {
    if (unread == 0) throw;
    arena_full_ = {unread, std::chrono::steady_clock::now() + std::chrono::milliseconds(1)};
    return std::nullopt;
  }
}

bool ShmTransport::try_recv(MessageOp& op, int src) {
  auto const bytes = std::get<spi::Sink>(op.payload).bytes;
  auto& channel = group_->channel(src, rank());
  auto const received = channel.received.load(std::memory_order_relaxed);
  auto const sent = channel.sent.load(std::memory_order_seq_cst);
  if (sent == received) return false;
  if (sent < received || sent - received > node::Channel::depth)
    group_->fail_corrupt(op.name(), "messages sent by rank " + std::to_string(src),
                         "0 to " + std::to_string(node::Channel::depth) + " more than " + std::to_string(received),
                         std::to_string(sent));
  auto const message = node::load_once(channel.ring[received % node::Channel::depth]);
  if (op.is_from_any()) {
    *op.source = src;
    first_source_ = (src + 1) % world_size();
  }
  bool const is_sent = message.slot != node::Channel::not_sent;
  bool const fits = is_sent && message.bytes == bytes.size() && message.tag == op.tag;
  std::exception_ptr failure;  // the message is dropped then, so that the next receive gets the next one
  try {
    if (fits && message.bytes != 0) take_payload(op, src, message);
  } catch (...) {
    failure = std::current_exception();
  }
  channel.received.exchange(received + 1, std::memory_order_seq_cst);
  group_->count_progress();
  group_->ring_member(src);
  if (failure) std::rethrow_exception(failure);
  if (fits) return true;
  if (!is_sent) {
    throw RemoteError(error_in(
        *this, {.operation = op.name(),
                .message = "rank " + std::to_string(src) + " could not send this message: it has no memory for it",
                .hint = "raise CROSSRANK_ARENA_CAP, or send smaller messages",
                .failed_ranks = {src}}));
  }
  throw MessageMismatch(error_in(*this, {.operation = op.name()}), src, {bytes.size(), op.tag},
                        {message.bytes, message.tag});
}

void ShmTransport::take_payload(MessageOp& op, int src, node::Channel::Message const& message) {
  if ((message.slot & payload_on_device) != 0) return take_device_payload(op, src, message);
  auto const payload = group_->payload(src, message.offset, message.bytes);
  node::bulk_copy(group_->comm(), std::get<spi::Sink>(op.payload).bytes.data(), payload.data(), payload.size());
  if (op.on_device && (message.slot & announces_device) != 0) open_announced(src, message);
}

}  // namespace crossrank::shm
