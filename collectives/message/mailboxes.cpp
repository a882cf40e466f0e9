#include "collectives/message/mailboxes.hpp"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "collectives/spi/message_mismatch.hpp"
#include "lib/tensor/copy_memory.hpp"

namespace crossrank::message {
namespace {

constexpr std::uint64_t window = 8;     // as deep as a channel of the shm backend
constexpr spi::RequestId no_receive{};  // request ids begin at 1

}  // namespace

MessageOp MessageOp::send(spi::Source bytes, int dst, std::uint32_t tag, Attachment attachment) {
  return {{}, dst, tag, OutgoingMessage{.source = std::move(bytes), .attachment = std::move(attachment)}};
}

MessageOp MessageOp::receive(spi::Sink bytes, int src, std::uint32_t tag) {
  return {{}, src, tag, IncomingMessage{.sink = std::move(bytes)}};
}

MessageOp MessageOp::receive_any(spi::Sink bytes, std::uint32_t tag, std::shared_ptr<int> source) {
  return {{}, any, tag, IncomingMessage{.sink = std::move(bytes), .source = std::move(source)}};
}

char const* MessageOp::name() const noexcept {
  auto const* const incoming = std::get_if<IncomingMessage>(&message);
  if (incoming == nullptr) return "send";
  return incoming->source ? "recv_any" : "recv";
}

void Mailboxes::post(spi::RequestId request_id, MessageOp op) {
  auto const peer = op.peer;
  bool const sends = std::holds_alternative<OutgoingMessage>(op.message);
  operations_.emplace(request_id, std::move(op));
  if (sends) {
    queue(peer).sends.push_back(request_id);
    advance(peer);
  } else if (peer == MessageOp::any) {
    any_receives_.push_back(request_id);
    match_any();
  } else {
    queue(peer).receives.push_back(request_id);
    match(peer);
  }
}

MessageOp* Mailboxes::find(spi::RequestId request_id) noexcept {
  auto const found = operations_.find(request_id);
  return found == operations_.end() ? nullptr : &found->second;
}

std::function<bool()> Mailboxes::all_taken_by(int member) const {
  auto const& peer_queue = at_rank(queues_, member);
  auto number = peer_queue.sent;
  for (auto const request_id : peer_queue.sends) {
    bool const has_number = std::get<OutgoingMessage>(operations_.at(request_id).message).number != 0;
    if (!has_number) ++number;
  }
  return [taken = peer_queue.taken, number] { return taken->load(std::memory_order_acquire) >= number; };
}

void Mailboxes::drop(spi::RequestId request_id) noexcept {
  auto const* const op = find(request_id);
  if (op == nullptr) return;
  if (op->peer == MessageOp::any) {
    std::erase(any_receives_, request_id);
  } else if (!op->completed) {
    auto& peer_queue = queue(op->peer);
    std::erase(peer_queue.sends, request_id);
    std::erase(peer_queue.receives, request_id);
    auto const* const incoming = std::get_if<IncomingMessage>(&op->message);
    for (auto& arrived : peer_queue.arrived) {
      if (incoming == nullptr || !arrived.matched || arrived.receive != request_id) continue;
      auto const bytes = incoming->sink.bytes.first(arrived.received);
      arrived.kept.assign(bytes.begin(), bytes.end());
      arrived.matched = false;
    }
  }
  operations_.erase(request_id);
}

void Mailboxes::cancel(spi::RequestId request_id) {
  auto* const op = find(request_id);
  auto* const outgoing = op == nullptr ? nullptr : std::get_if<OutgoingMessage>(&op->message);
  if (outgoing == nullptr || outgoing->number == 0 || op->completed) {
    drop(request_id);
    return;
  }
  auto const& bytes = outgoing->source.bytes;
  auto const copy = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  outgoing->source = {.bytes = *copy, .owner = copy};
  outgoing->abandoned = true;
}

bool Mailboxes::advance() {
  bool moved = false;
  for (int member = 0; member < link_.size(); ++member) moved = advance(member) || moved;
  return moved;
}

bool Mailboxes::advance(int member) {
  std::size_t sent = 0;
  while (!queue(member).sends.empty() && send_first(member, sent)) {
  }
  return sent != 0;
}

bool Mailboxes::send_first(int member, std::size_t& sent) {
  auto& peer_queue = queue(member);
  auto const request_id = peer_queue.sends.front();
  auto& op = operations_.at(request_id);
  auto& outgoing = std::get<OutgoingMessage>(op.message);
  if (outgoing.number == 0) {
    if (peer_queue.sent - peer_queue.taken->load(std::memory_order_relaxed) >= window) return false;
    outgoing.number = ++peer_queue.sent;
  }
  auto const& attachment = outgoing.attachment;
  PacketHeader head{.kind = PacketKind::message,
                    .op_kind = op.tag,
                    .round = outgoing.number,
                    .bytes = outgoing.source.bytes.size(),
                    .flags = attachment.has_payload_elsewhere ? std::uint32_t{flag_elsewhere} : 0};
  auto const bytes = attachment.has_payload_elsewhere ? Bytes() : outgoing.source.bytes;
  do {
    if (bytes.size() > small_payload && (sent >= chunks_at_once || !link_.has_space(member))) return false;
    auto const chunk = bytes.subspan(outgoing.staged, std::min(chunk_bytes, bytes.size() - outgoing.staged));
    auto const attached = outgoing.staged == 0 ? Bytes(attachment.bytes) : Bytes();
    head.digest = attached.size();
    link_.send(member, head, chunk, attached);
    outgoing.staged += chunk.size();
    ++sent;
  } while (outgoing.staged < bytes.size());
  op.completed = true;
  peer_queue.sends.pop_front();
  if (outgoing.abandoned) operations_.erase(request_id);
  return true;
}

void Mailboxes::take(int member, PacketHeader const& head, Bytes body) {
  auto& arrivals = queue(member).arrived;
  if (arrivals.empty() || arrivals.back().number != head.round) {
    auto const attached = body.last(std::min<std::size_t>(head.digest, body.size()));
    arrivals.push_back({.number = head.round,
                        .tag = head.op_kind,
                        .bytes = head.bytes,
                        .attachment = {.bytes = {attached.begin(), attached.end()},
                                       .has_payload_elsewhere = (head.flags & flag_elsewhere) != 0}});
    body = body.first(body.size() - attached.size());
  }
  auto& arrived = arrivals.back();
  body = body.first(std::min<std::size_t>(body.size(), arrived.bytes - arrived.received));
  if (!arrived.matched) {
    arrived.kept.insert(arrived.kept.end(), body.begin(), body.end());
  } else if (auto const* const op = find(arrived.receive); op != nullptr && !body.empty()) {
    copy_memory(std::get<IncomingMessage>(op->message).sink.bytes.data() + arrived.received, body.data(), body.size());
  }
  arrived.received += body.size();
  match(member);
}

void Mailboxes::take_receipt(int member) {
  queue(member).taken->fetch_add(1, std::memory_order_release);  // of `all_taken_by`
  advance(member);
}

/// Matches messages to receives, both in order. The first bytes of a message are enough: the rest goes straight to its
/// place.
void Mailboxes::match(int member) {
  auto& peer_queue = queue(member);
  for (auto& arrived : peer_queue.arrived) {
    if (arrived.matched) continue;
    auto const request_id = take_receive(member);
    if (request_id == no_receive) break;
    start_receive(member, arrived, request_id);
  }
  while (!peer_queue.arrived.empty() && peer_queue.arrived.front().matched && peer_queue.arrived.front().complete()) {
    if (auto* const op = find(peer_queue.arrived.front().receive)) op->completed = true;
    peer_queue.arrived.pop_front();
    link_.send(member, {.kind = PacketKind::taken});
  }
}

void Mailboxes::match_any() {
  for (int step = 0, first = first_source_; step < link_.size() && !any_receives_.empty(); ++step)
    match((first + step) % link_.size());
}

/// Ids rise in the order of posting, so the lower one was posted first.
spi::RequestId Mailboxes::take_receive(int member) noexcept {
  auto& own = queue(member).receives;
  bool const from_any = own.empty() || (!any_receives_.empty() && any_receives_.front() < own.front());
  auto& receives = from_any ? any_receives_ : own;
  if (receives.empty()) return no_receive;
  auto const request_id = receives.front();
  receives.pop_front();
  return request_id;
}

void Mailboxes::start_receive(int member, Arrived& arrived, spi::RequestId request_id) {
  auto& op = operations_.at(request_id);
  auto const& incoming = std::get<IncomingMessage>(op.message);
  auto const sink = incoming.sink.bytes;
  if (incoming.source) {
    op.peer = member;
    *incoming.source = member;
    first_source_ = (member + 1) % link_.size();
  }
  arrived.matched = true;
  auto const& attachment = arrived.attachment;
  bool const can_take = !attachment.has_payload_elsewhere || incoming.on_attachment;
  if (arrived.bytes == sink.size() && arrived.tag == op.tag && can_take) {
    arrived.receive = request_id;
    if (!arrived.kept.empty()) copy_memory(sink.data(), arrived.kept.data(), arrived.kept.size());
    if (!attachment.bytes.empty() && incoming.on_attachment)
      incoming.on_attachment(member, attachment.bytes, attachment.has_payload_elsewhere);
  } else {
    op.fail(std::make_exception_ptr(
        MessageMismatch(link_.info(op.name()), member, {sink.size(), op.tag}, {arrived.bytes, arrived.tag})));
  }
  arrived.kept = {};
}

}  // namespace crossrank::message
