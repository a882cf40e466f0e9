#include "collectives/message/message_transport.hpp"

#include <algorithm>
#include <utility>

#include "collectives/message_mismatch.hpp"
#include "lib/core/copy_memory.hpp"

/// Messages between two members: sent ahead up to a window, matched in order.
namespace crossrank::message {
namespace {

constexpr std::uint64_t window = 8;  // as deep as a channel of the shm backend

}  // namespace

bool MessageTransport::advance_sends(int member) {
  auto& box = boxes_[static_cast<std::size_t>(member)];
  bool moved = false;
  while (!box.sends.empty() && !failure_) {
    auto const ticket = box.sends.front();
    auto& op = operation(ticket);
    auto const bytes = op.source.bytes;
    if (!op.under_way) {
      if (box.sent - box.taken >= window) break;
      op.under_way = true;
      op.number = ++box.sent;
    } else if (op.staged == bytes.size()) {
      break;
    }
    do {
      if (bytes.size() > small_payload && !network_->has_room(job_rank(member))) return moved;
      auto const part = bytes.subspan(op.staged, std::min(chunk_bytes, bytes.size() - op.staged));
      network_->send(job_rank(member),
                     {.kind = PacketKind::message,
                      .verb = op.tag,
                      .group = identity_.number,
                      .round = op.number,
                      .bytes = bytes.size()},
                     part);
      op.staged += part.size();
      moved = true;
    } while (op.staged < bytes.size());
    op.settled = true;
    box.sends.pop_front();
    if (op.abandoned) operations_.erase(ticket);
  }
  return moved;
}

void MessageTransport::take_message(int member, Head const& head, Bytes body) {
  auto& box = boxes_[static_cast<std::size_t>(member)];
  if (box.come.empty() || box.come.back().number != head.round)
    box.come.push_back({.number = head.round, .tag = head.verb, .bytes = head.bytes});
  auto& message = box.come.back();
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
  auto& box = boxes_[static_cast<std::size_t>(member)];
  for (auto& message : box.come) {
    if (message.bound) continue;
    if (box.receives.empty()) break;
    auto const ticket = box.receives.front();
    box.receives.pop_front();
    auto& op = operation(ticket);
    message.bound = true;
    if (message.bytes == op.sink.bytes.size() && message.tag == op.tag) {
      message.receive = ticket;
      if (!message.kept.empty()) copy_memory(op.sink.bytes.data(), message.kept.data(), message.kept.size());
    } else {
      op.failure = std::make_exception_ptr(
          MessageMismatch(info("recv"), member, {op.sink.bytes.size(), op.tag}, {message.bytes, message.tag}));
      op.settled = true;
    }
    message.kept = {};
  }
  while (!box.come.empty() && box.come.front().bound && box.come.front().received == box.come.front().bytes)
    complete_receive(member, box.come.front());
}

void MessageTransport::complete_receive(int member, Message& message) {
  if (auto const found = operations_.find(message.receive); found != operations_.end()) found->second.settled = true;
  boxes_[static_cast<std::size_t>(member)].come.pop_front();
  network_->send(job_rank(member), {.kind = PacketKind::taken, .group = identity_.number});
}

}  // namespace crossrank::message
