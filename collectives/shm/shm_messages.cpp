#include <algorithm>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/spi/message_mismatch.hpp"
#include "collectives/shm/shm_transport.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/node/group/bulk_copy.hpp"
#include "lib/node/memory/corruption.hpp"

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
    for (auto const& op : owner.messages_) {
      if (op.is_under_way()) owner.advance_messages(op);
    }
    return operation.completed;
  }
  bool waits_for(int member) override { return member == operation.peer; }

  ShmTransport& owner;
  MessageOp& operation;
};

template <class Payload>
RequestId ShmTransport::begin_message(Payload payload, int peer, std::uint32_t tag) {
  MessageOp op{.payload = std::move(payload), .peer = peer, .tag = tag};
  require_open(op.name());
  group_->throw_if_failed(op.name());
  op.sequence = ++messages_posted_;
  if (free_messages_.empty()) {
    free_messages_.push_back(messages_.size());
    messages_.emplace_back();
  }
  auto const index = free_messages_.back();
  free_messages_.pop_back();
  messages_[index] = std::move(op);
  note_message(messages_[index]);
  return static_cast<RequestId>(index + first_message);
}

RequestId ShmTransport::post_send(spi::Source bytes, int dst, std::uint32_t tag) {
  auto const request_id = begin_message(std::move(bytes), dst, tag);
  advance_messages(message(request_id));
  return request_id;
}

RequestId ShmTransport::post_recv(spi::Sink bytes, int src, std::uint32_t tag) {
  return begin_message(std::move(bytes), src, tag);
}

/// Notes a message for the flight recorder, with its number on the channel.
void ShmTransport::note_message(MessageOp const& op) const noexcept {
  auto const* const source = std::get_if<spi::Source>(&op.payload);
  auto const* const sink = std::get_if<spi::Sink>(&op.payload);
  auto const& channel = op.sends() ? group_->channel(rank(), op.peer) : group_->channel(op.peer, rank());
  auto const moved = (op.sends() ? channel.sent : channel.received).load(std::memory_order_relaxed);
  auto const under_way =
      std::ranges::count_if(messages_, [&](MessageOp const& other) { return other.shares_channel(op); });
  group_->note_message({.op_kind = op.sends() ? OpKind::send : OpKind::recv,
                        .round = moved + static_cast<std::uint64_t>(under_way),
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

void ShmTransport::complete(MessageOp& op, spi::TimeoutPolicy const& timeout_policy) {
  if (!op.completed) {
    ChannelCondition condition(*this, op);
    if (!condition.done()) group_->wait_for(condition, timeout_policy, op.name());
  }
  if (op.failure) std::rethrow_exception(op.failure);
}

void ShmTransport::advance_messages(MessageOp const& like) {
  for (;;) {
    MessageOp* first = nullptr;
    for (auto& op : messages_) {
      if (op.shares_channel(like) && (first == nullptr || op.sequence < first->sequence)) first = &op;
    }
    if (first == nullptr) return;
    try {
      if (!(first->sends() ? try_send(*first) : try_recv(*first))) return;
    } catch (...) {
      first->failure = std::current_exception();
    }
    first->completed = true;
  }
}

void ShmTransport::release_sent_slots(int dst) noexcept {
  auto& channel = at_rank(sent_, dst);
  auto const taken = group_->channel(rank(), dst).received.load(std::memory_order_acquire);
  while (!channel.empty() && channel.front().until <= taken) {
    group_->comm().arena().release(channel.front().slot);
    channel.pop_front();
  }
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
  release_sent_slots(op.peer);
  auto& message = channel.ring[sent % node::Channel::depth];
  message = {};
  message.bytes = bytes.size();
  message.tag = op.tag;
  if (!bytes.empty()) {
    auto& arena = group_->comm().arena();
    auto const slot = arena.allocate(bytes.size());
    node::bulk_copy(group_->comm(), arena.at(slot), bytes.data(), bytes.size());
    message.offset = slot.offset;
    message.slot = slot.id;
    message.generation = slot.generation;
    at_rank(sent_, op.peer).push_back({slot, sent + 1});
  }
  channel.sent.exchange(sent + 1, std::memory_order_seq_cst);
  group_->progress();
  group_->ring_member(op.peer);
  return true;
}

bool ShmTransport::try_recv(MessageOp& op) {
  auto const bytes = std::get<spi::Sink>(op.payload).bytes;
  auto& channel = group_->channel(op.peer, rank());
  auto const received = channel.received.load(std::memory_order_relaxed);
  auto const sent = channel.sent.load(std::memory_order_seq_cst);
  if (sent == received) return false;
  if (sent < received || sent - received > node::Channel::depth)
    group_->fail_corrupt("recv", "messages sent by rank " + std::to_string(op.peer),
                         "0 to " + std::to_string(node::Channel::depth) + " more than " + std::to_string(received),
                         std::to_string(sent));
  auto const message = node::load_once(channel.ring[received % node::Channel::depth]);
  bool const fits = message.bytes == bytes.size() && message.tag == op.tag;
  if (fits && message.bytes != 0) {
    auto const payload = group_->payload(op.peer, message.offset, message.bytes);
    node::bulk_copy(group_->comm(), bytes.data(), payload.data(), payload.size());
  }
  channel.received.exchange(received + 1, std::memory_order_seq_cst);
  group_->progress();
  group_->ring_member(op.peer);
  if (fits) return true;
  throw MessageMismatch({.group = name(), .rank = rank(), .world_size = world_size()}, op.peer, {bytes.size(), op.tag},
                        {message.bytes, message.tag});
}

}  // namespace crossrank::shm
