#include "collectives/message/payload_flow.hpp"

#include <algorithm>
#include <utility>

#include "lib/core/at_rank.hpp"
#include "lib/tensor/copy_memory.hpp"

namespace crossrank::message {
namespace {

std::vector<Exchange::Transfer> consecutive(std::span<std::size_t const> counts) {
  std::vector<Exchange::Transfer> parts;
  parts.reserve(counts.size());
  for (std::size_t offset = 0; auto const bytes : counts) {
    parts.push_back({.offset = offset, .bytes = bytes});
    offset += bytes;
  }
  return parts;
}

}  // namespace

// ---------------------------------------------------------------- Relay

Relay Relay::chain(GroupLink const& link, int root, std::span<std::byte> buffer) {
  auto const ranks = link.size();
  auto const place = (link.rank() - root + ranks) % ranks;
  Relay relay;
  if (place != 0) {
    relay.from = (link.rank() - 1 + ranks) % ranks;
    relay.in = {buffer};
    relay.expected = buffer.size();
  } else {
    relay.lead = buffer.size();
  }
  if (place != ranks - 1) {
    relay.to = (link.rank() + 1) % ranks;
    relay.out = {buffer};
    relay.to_send = buffer.size();
  }
  return relay;
}

Relay Relay::ring(GroupLink const& link, std::span<std::uint64_t const> sizes, std::span<std::byte> buffer) {
  auto const ranks = link.size();
  Relay relay;
  if (ranks == 1) return relay;
  std::vector<std::span<std::byte>> blocks;
  blocks.reserve(sizes.size());
  for (std::size_t offset = 0; auto const size : sizes) {
    blocks.push_back(buffer.subspan(offset, size));
    offset += size;
  }
  auto const block = [&](int member) { return at_rank(blocks, (member + ranks) % ranks); };
  relay.from = (link.rank() - 1 + ranks) % ranks;
  relay.to = (link.rank() + 1) % ranks;
  relay.lead = block(link.rank()).size();
  relay.expected = buffer.size() - relay.lead;
  relay.to_send = buffer.size() - block(link.rank() + 1).size();
  for (int step = 1; step < ranks; ++step) relay.in.push_back(block(link.rank() - step));
  for (int step = 0; step < ranks - 1; ++step) relay.out.emplace_back(block(link.rank() - step));
  return relay;
}

bool Relay::take(Bytes bytes) noexcept {
  std::size_t start = 0;
  if (bytes.size() > expected - received) return false;
  for (auto const& piece : in) {
    while (!bytes.empty() && received >= start && received < start + piece.size()) {
      auto const part = std::min(bytes.size(), start + piece.size() - received);
      copy_memory(piece.data() + (received - start), bytes.data(), part);
      bytes = bytes.subspan(part);
      received += part;
    }
    start += piece.size();
  }
  return bytes.empty();
}

Bytes Relay::next(std::size_t max) const noexcept {
  auto const available = std::min(lead + received, to_send);
  if (sent >= available) return {};
  std::size_t start = 0;
  for (auto const& piece : out) {
    if (sent < start + piece.size())
      return piece.subspan(sent - start, std::min({max, available - sent, start + piece.size() - sent}));
    start += piece.size();
  }
  return {};
}

// ---------------------------------------------------------------- Exchange

Exchange Exchange::of(Bytes source, std::span<std::size_t const> send_counts, std::span<std::byte> sink,
                      std::span<std::size_t const> recv_counts) {
  return {.source = source, .sink = sink, .in = consecutive(recv_counts), .out = consecutive(send_counts)};
}

void Exchange::copy_own(int member) {
  auto const& to_self = at_rank(out, member);
  auto const& from_self = at_rank(in, member);
  if (to_self.bytes != 0) move_memory(sink.data() + from_self.offset, source.data() + to_self.offset, to_self.bytes);
  skip(member);
}

void Exchange::skip(int member) {
  for (auto* const part : {&at_rank(out, member), &at_rank(in, member)}) part->moved = part->bytes;
}

bool Exchange::complete() const noexcept {
  return std::ranges::all_of(in, &Transfer::complete) && std::ranges::all_of(out, &Transfer::complete);
}

// ---------------------------------------------------------------- PayloadFlow

void PayloadFlow::start(std::uint64_t round, Payload payload) {
  payload_.emplace(std::move(payload));
  round_ = round;
  overrun_.reset();
  if (auto const found = early_.find(round); found != early_.end()) {
    auto const chunks = std::move(found->second);
    early_.erase(found);
    for (auto const& chunk : chunks) store(chunk.member, chunk.bytes);
  }
  advance();
}

void PayloadFlow::take(int member, std::uint64_t round, Bytes chunk, std::uint64_t passed) {
  if (payload_ && round == round_) {
    store(member, chunk);
    advance();
  } else if (round > passed) {
    early_[round].push_back({member, {chunk.begin(), chunk.end()}});
  }
}

void PayloadFlow::store(int member, Bytes chunk) {
  if (auto* const relay = std::get_if<Relay>(&*payload_)) {
    if (!relay->take(chunk)) overrun_ = {relay->from, relay->expected, relay->received + chunk.size()};
    return;
  }
  auto& exchange = std::get<Exchange>(*payload_);
  auto& part = at_rank(exchange.in, member);
  if (chunk.size() > part.bytes - part.moved) {
    overrun_ = {member, part.bytes, part.moved + chunk.size()};
    return;
  }
  if (!chunk.empty()) copy_memory(exchange.sink.data() + part.offset + part.moved, chunk.data(), chunk.size());
  part.moved += chunk.size();
}

bool PayloadFlow::advance() {
  return payload_ && std::visit([this](auto& payload) { return send(payload); }, *payload_);
}

bool PayloadFlow::send(Relay& relay) {
  std::size_t sent = 0;
  for (; relay.to >= 0 && sent < chunks_at_once && link_.has_space(relay.to); ++sent) {
    auto const chunk = relay.next(chunk_bytes);
    if (chunk.empty()) break;
    link_.send(relay.to, {.kind = PacketKind::flow, .round = round_, .bytes = relay.to_send}, chunk);
    relay.sent += chunk.size();
  }
  return sent != 0;
}

/// Begins with the next member, so that not all members send to the same one.
bool PayloadFlow::send(Exchange& exchange) {
  std::size_t sent = 0;
  for (int step = 1; step < link_.size(); ++step) {
    auto const dst = (link_.rank() + step) % link_.size();
    auto& part = at_rank(exchange.out, dst);
    for (; sent < chunks_at_once && !part.complete() && link_.has_space(dst); ++sent) {
      auto const chunk =
          exchange.source.subspan(part.offset + part.moved, std::min(chunk_bytes, part.bytes - part.moved));
      link_.send(dst, {.kind = PacketKind::flow, .round = round_, .bytes = part.bytes}, chunk);
      part.moved += chunk.size();
    }
  }
  return sent != 0;
}

bool PayloadFlow::complete() const noexcept {
  if (!payload_) return false;
  auto const* const relay = std::get_if<Relay>(&*payload_);
  return relay != nullptr ? relay->complete() : std::get<Exchange>(*payload_).complete();
}

void PayloadFlow::append_awaited(std::vector<int>& to) const {
  if (!payload_) return;
  if (auto const* const relay = std::get_if<Relay>(&*payload_)) {
    to.push_back(relay->received < relay->expected ? relay->from : relay->to);
    return;
  }
  auto const& exchange = std::get<Exchange>(*payload_);
  for (std::size_t member = 0; member < exchange.in.size(); ++member) {
    if (!exchange.in[member].complete() || !exchange.out[member].complete()) to.push_back(static_cast<int>(member));
  }
}

}  // namespace crossrank::message
