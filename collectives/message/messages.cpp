#include "collectives/message/message_transport.hpp"

#include <algorithm>
#include <utility>

#include "collectives/spi/message_mismatch.hpp"
#include "lib/tensor/copy_memory.hpp"

/// Messages between two members: sent ahead up to a window, matched in order.
namespace crossrank::message {
namespace {

constexpr std::uint64_t window = 8;  // as deep as a channel of the shm backend

}  // namespace

bool MessageTransport::advance_sends(int member) {
  auto& peer_queue = peer_queues_[static_cast<std::size_t>(member)];
  bool moved = false;
  while (!peer_queue.sends.empty() && !failure_) {
    auto const request_id = peer_queue.sends.front();
    auto& op = operation(request_id);
    auto const bytes = op.source.bytes;
    if (!op.under_way) {
      if (peer_queue.sent - peer_queue.taken >= window) break;
      op.under_way = true;
      op.number = ++peer_queue.sent;
    } else if (op.staged == bytes.size()) {
      break;
    }
    do {
      if (bytes.size() > small_payload && !network_->has_space(job_rank(member))) return moved;
      auto const part = bytes.subspan(op.staged, std::min(chunk_bytes, bytes.size() - op.staged));
      network_->send(job_rank(member),
                     {.kind = PacketKind::message,
                      .op_kind = op.tag,
                      .group = identity_.number,
                      .round = op.number,
                      .bytes = bytes.size()},
                     part);
      op.staged += part.size();
      moved = true;
    } while (op.staged < bytes.size());
    op.completed = true;
    peer_queue.sends.pop_front();
    if (op.abandoned) operations_.erase(request_id);
  }
  return moved;
}

void MessageTransport::take_message(int member, PacketHeader const& head, Bytes body) {
  auto& peer_queue = peer_queues_[static_cast<std::size_t>(member)];
  if (peer_queue.come.empty() || peer_queue.come.back().number != head.round)
    peer_queue.come.push_back({.number = head.round, .tag = head.op_kind, .bytes = head.bytes});
  auto& message = peer_queue.come.back();
  body = body.first(std::min<std::size_t>(body.size(), message.bytes - message.received));
  if (!message.bound) {
    message.kept.insert(message.kept.end(), body.begin(), body.end());
  } else if (auto const found = operations_.find(message.receive); found != operations_.end() && !body.empty()) {
    copy_memory(found->second.sink.bytes.data() + message.received, body.data(), body.size());
  }
  message.received += body.size();
  match(member);
}

/// Gives messages to receives, both in order: the first bytes are enough, the rest goes where it belongs.
void MessageTransport::match(int member) {
  auto& peer_queue = peer_queues_[static_cast<std::size_t>(member)];
  for (auto& message : peer_queue.come) {
    if (message.bound) continue;
    if (peer_queue.receives.empty()) break;
    auto const request_id = peer_queue.receives.front();
    peer_queue.receives.pop_front();
    auto& op = operation(request_id);
    message.bound = true;
    if (message.bytes == op.sink.bytes.size() && message.tag == op.tag) {
      message.receive = request_id;
      if (!message.kept.empty()) copy_memory(op.sink.bytes.data(), message.kept.data(), message.kept.size());
    } else {
      op.failure = std::make_exception_ptr(
          MessageMismatch(info("recv"), member, {op.sink.bytes.size(), op.tag}, {message.bytes, message.tag}));
      op.completed = true;
    }
    message.kept = {};
  }
  while (!peer_queue.come.empty() && peer_queue.come.front().bound &&
         peer_queue.come.front().received == peer_queue.come.front().bytes)
    complete_receive(member, peer_queue.come.front());
}

void MessageTransport::complete_receive(int member, Message& message) {
  if (auto const found = operations_.find(message.receive); found != operations_.end()) found->second.completed = true;
  peer_queues_[static_cast<std::size_t>(member)].come.pop_front();
  network_->send(job_rank(member), {.kind = PacketKind::taken, .group = identity_.number});
}

}  // namespace crossrank::message
