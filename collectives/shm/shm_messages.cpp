#include <algorithm>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/spi/message_mismatch.hpp"
#include "collectives/shm/shm_transport.hpp"
#include "lib/node/group/bulk_copy.hpp"
#include "lib/node/memory/corruption.hpp"

/// Messages between two ranks: each ordered pair has a ring of descriptors; payloads are in the sender's arena.
namespace crossrank::shm {

using spi::OpKind;
using spi::RequestId;

RequestId ShmTransport::begin_message(Kind kind, int peer, std::uint32_t tag) {
  auto const* const operation_name = kind == Kind::send ? "send" : "recv";
  require_open(operation_name);
  group_->throw_if_failed(operation_name);
  auto const request_id = begin(kind, {});
  auto& op = operation(request_id);
  op.sequence = ++messages_posted_;
  op.peer = peer;
  op.tag = tag;
  return request_id;
}

RequestId ShmTransport::post_send(spi::Source bytes, int dst, std::uint32_t tag) {
  auto const request_id = begin_message(Kind::send, dst, tag);
  operation(request_id).source = std::move(bytes);
  note_message(operation(request_id));
  advance_messages(Kind::send, dst);
  return request_id;
}

RequestId ShmTransport::post_recv(spi::Sink bytes, int src, std::uint32_t tag) {
  auto const request_id = begin_message(Kind::recv, src, tag);
  operation(request_id).sink = std::move(bytes);
  note_message(operation(request_id));
  return request_id;
}

/// Notes a message for the flight recorder, with its number on the channel.
void ShmTransport::note_message(ShmOp const& op) const noexcept {
  bool const sends = op.kind == Kind::send;
  auto const& channel = sends ? group_->channel(rank(), op.peer) : group_->channel(op.peer, rank());
  auto const moved = (sends ? channel.sent : channel.received).load(std::memory_order_relaxed);
  auto const under_way = std::count_if(operations_.begin(), operations_.end(), [&](ShmOp const& other) {
    return other.kind == op.kind && other.peer == op.peer && !other.completed;
  });
  group_->note_message({.op_kind = sends ? OpKind::send : OpKind::recv,
                        .round = moved + static_cast<std::uint64_t>(under_way),
                        .bytes = sends ? op.source.bytes.size() : op.sink.bytes.size(),
                        .peer = static_cast<std::uint32_t>(op.peer)});
}

void ShmTransport::advance_messages(Kind kind, int peer) {
  for (;;) {
    ShmOp* first = nullptr;
    for (auto& op : operations_) {
      if (op.kind != kind || op.peer != peer || op.completed) continue;
      if (first == nullptr || op.sequence < first->sequence) first = &op;
    }
    if (first == nullptr) return;
    try {
      if (!(kind == Kind::send ? try_send(*first) : try_recv(*first))) return;
    } catch (...) {
      first->failure = std::current_exception();
    }
    first->completed = true;
  }
}

void ShmTransport::release_sent_slots(int dst) noexcept {
  auto& channel = sent_[static_cast<std::size_t>(dst)];
  auto const taken = group_->channel(rank(), dst).received.load(std::memory_order_acquire);
  while (!channel.empty() && channel.front().until <= taken) {
    group_->comm().arena().release(channel.front().slot);
    channel.pop_front();
  }
}

bool ShmTransport::try_send(ShmOp& op) {
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
  message.bytes = op.source.bytes.size();
  message.tag = op.tag;
  if (!op.source.bytes.empty()) {
    auto& arena = group_->comm().arena();
    auto const slot = arena.allocate(op.source.bytes.size());
    node::bulk_copy(group_->comm(), arena.at(slot), op.source.bytes.data(), op.source.bytes.size());
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

bool ShmTransport::try_recv(ShmOp& op) {
  auto& channel = group_->channel(op.peer, rank());
  auto const received = channel.received.load(std::memory_order_relaxed);
  auto const sent = channel.sent.load(std::memory_order_seq_cst);
  if (sent == received) return false;
  if (sent < received || sent - received > node::Channel::depth)
    group_->fail_corrupt("recv", "messages sent by rank " + std::to_string(op.peer),
                         "0 to " + std::to_string(node::Channel::depth) + " more than " + std::to_string(received),
                         std::to_string(sent));
  auto const message = node::load_once(channel.ring[received % node::Channel::depth]);
  bool const fits = message.bytes == op.sink.bytes.size() && message.tag == op.tag;
  if (fits && message.bytes != 0) {
    auto const payload = group_->payload(op.peer, message.offset, message.bytes);
    node::bulk_copy(group_->comm(), op.sink.bytes.data(), payload.data(), payload.size());
  }
  channel.received.exchange(received + 1, std::memory_order_seq_cst);
  group_->progress();
  group_->ring_member(op.peer);
  if (fits) return true;
  throw MessageMismatch({.group = name(), .rank = rank(), .world_size = world_size()}, op.peer,
                        {op.sink.bytes.size(), op.tag}, {message.bytes, message.tag});
}

}  // namespace crossrank::shm
