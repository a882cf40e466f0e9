#include "collectives/message/message_transport.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "lib/node/memory/call_arguments.hpp"
#include "lib/tensor/copy_memory.hpp"
#include "lib/node/group/call_variants.hpp"
#include "lib/core/rank_list.hpp"

/// Arrivals, verdicts, and the payloads that follow them.
namespace crossrank::message {

int MessageTransport::member_of(int job_rank) const noexcept {
  auto const found = std::find(identity_.members.begin(), identity_.members.end(), job_rank);
  return found == identity_.members.end() ? -1 : static_cast<int>(found - identity_.members.begin());
}

void MessageTransport::handle(int src, PacketHeader const& head, Bytes body) {
  auto const member = member_of(src);
  if (member < 0) return;
  ++activity_;
  switch (head.kind) {
    case PacketKind::arrival: {
      auto const carried = (head.flags & flag_whole) != 0 ? std::min<std::size_t>(head.bytes, body.size()) : 0;
      auto const payload = body.first(carried);
      auto const said = body.subspan(carried);
      arrive(member, head.round,
             {head.op_kind,
              head.digest,
              head.bytes,
              head.flags,
              head.root,
              {payload.begin(), payload.end()},
              {reinterpret_cast<char const*>(said.data()), std::min(said.size(), max_argument_bytes)}});
      break;
    }
    case PacketKind::verdict: pass(head.round, (head.flags & flag_whole) != 0, body); break;
    case PacketKind::flow: take_flow(member, head.round, body); break;
    case PacketKind::message: take_message(member, head, body); break;
    case PacketKind::taken:
      ++peer_queues_[static_cast<std::size_t>(member)].taken;
      advance_sends(member);
      break;
    case PacketKind::failure: take_failure(head, body); break;
    case PacketKind::overdue:
      if (rank() == 0 && head.round == decided_ + 1 && !failure_) {
        auto const late = missing();
        // This rank waits for bytes of somebody, and will say of whom.
        if (late.front() == 0 && network_->own_status().waiting) break;
        fail({.code = ErrorCode::timeout,
              .failed_ranks = late,
              .text = (late.size() == 1 ? "rank " : "ranks ") + node::format_ranks(late) + " made no progress for " +
                      std::to_string(head.bytes) + " ms: " + describe(late.front()),
              .decider = rank(),
              .round = head.round});
      }
      break;
    case PacketKind::gone:
      gone_[static_cast<std::size_t>(member)] = true;
      if (rank() == 0 && std::any_of(arrivals_.begin(), arrivals_.end(), [](auto const& a) { return a.has_value(); }))
        fail_if_gone(missing());
      break;
    case PacketKind::ping:
    case PacketKind::pong: break;
  }
}

std::vector<int> MessageTransport::missing() const {
  std::vector<int> out;
  for (int member = 0; member < world_size(); ++member) {
    if (!arrivals_[static_cast<std::size_t>(member)]) out.push_back(member);
  }
  return out;
}

void MessageTransport::arrive(int member, std::uint64_t round, Arrival arrival) {
  if (failure_ || round != decided_ + 1) return;
  arrivals_[static_cast<std::size_t>(member)] = std::move(arrival);
  auto const late = missing();
  if (late.empty()) {
    decide();
  } else {
    fail_if_gone(late);
  }
}

bool MessageTransport::fail_on_mismatch() {
  using Call = std::pair<std::uint32_t, std::uint64_t>;
  std::vector<std::pair<Call, std::vector<int>>> kinds;
  for (int member = 0; member < world_size(); ++member) {
    auto const call = arrivals_[static_cast<std::size_t>(member)]->call();
    auto found = std::find_if(kinds.begin(), kinds.end(), [&](auto const& k) { return k.first == call; });
    if (found == kinds.end()) found = kinds.insert(kinds.end(), {call, {}});
    found->second.push_back(member);
  }
  if (kinds.size() == 1) return false;
  std::stable_sort(kinds.begin(), kinds.end(),
                   [](auto const& a, auto const& b) { return a.second.size() < b.second.size(); });
  std::vector<node::CallVariant> sides;
  for (auto const& [call, members] : kinds) {
    auto const& arguments = arrivals_[static_cast<std::size_t>(members.front())]->arguments;
    sides.push_back({members, describe_call(spi::to_string(static_cast<spi::OpKind>(call.first)), arguments)});
  }
  fail({.code = ErrorCode::mismatch,
        .failed_ranks = kinds.front().second,
        .text = node::describe_call_variants(sides),
        .decider = rank(),
        .round = decided_ + 1});
  return true;
}

/// All have arrived: the first member says so, with the sizes of what moves, and with the bytes where they are few.
void MessageTransport::decide() {
  if (fail_on_mismatch()) return;
  auto const& first = *arrivals_.front();
  std::vector<std::uint64_t> sizes;
  std::vector<std::byte> payload;
  bool whole = true;
  auto const add = [&](Arrival const& arrival) {
    sizes.push_back(arrival.bytes);
    whole = whole && (arrival.flags & flag_whole) != 0;
    payload.insert(payload.end(), arrival.payload.begin(), arrival.payload.end());
  };
  if ((first.flags & flag_broadcast) != 0) {
    add(*arrivals_[static_cast<std::size_t>(first.root)]);
  } else if ((first.flags & flag_data) != 0) {
    for (auto const& arrival : arrivals_) add(*arrival);
  }
  whole = whole && payload.size() <= chunk_bytes;
  if (!whole) payload.clear();
  auto const round = decided_ + 1;
  PacketHeader const head{
      .kind = PacketKind::verdict, .group = identity_.number, .round = round, .flags = whole ? flag_whole : 0U};
  auto const table = std::as_bytes(std::span(sizes));
  for (int member = 1; member < world_size(); ++member) network_->send(job_rank(member), head, table, payload);
  for (auto& arrival : arrivals_) arrival.reset();
  std::vector<std::byte> body(table.begin(), table.end());
  body.insert(body.end(), payload.begin(), payload.end());
  pass(round, whole, body);
}

void MessageTransport::pass(std::uint64_t round, bool whole, Bytes body) {
  decided_ = round;
  auto const found = std::find_if(operations_.begin(), operations_.end(), [&](auto const& entry) {
    return !entry.second.is_message() && !entry.second.completed && entry.second.round == round;
  });
  if (found != operations_.end()) conclude(found->second, whole, body);
  if (deferred_failure_ && deferred_failure_->round <= decided_ + 1) apply_deferred_failure();
}

void MessageTransport::conclude(PacketOp& op, bool whole, Bytes body) {
  std::size_t const entries = op.kind == Kind::barrier     ? 0
                              : op.kind == Kind::broadcast ? 1
                                                           : static_cast<std::size_t>(world_size());
  std::vector<std::uint64_t> sizes(entries);
  auto const table = std::min(entries * sizeof(std::uint64_t), body.size());
  if (table != 0) std::memcpy(sizes.data(), body.data(), table);
  finish(op, whole, sizes, body.subspan(table));
}

std::exception_ptr MessageTransport::wrong_size(PacketOp const& operation, int member, std::size_t expected,
                                                std::size_t got) const {
  auto error = info(operation.name());
  error.message = "rank " + std::to_string(member) + " sent another number of bytes than was agreed";
  error.expected = std::to_string(expected);
  error.got = std::to_string(got);
  error.failed_ranks = {member};
  return std::make_exception_ptr(MismatchError(std::move(error)));
}

void MessageTransport::finish(PacketOp& op, bool whole, std::span<std::uint64_t const> sizes, Bytes payload) {
  if (op.kind == Kind::exchange) {
    start_exchange(op, payload);
    return;
  }
  if (op.kind == Kind::broadcast && sizes[0] != op.sink.bytes.size())
    op.failure = wrong_size(op, op.peer, op.sink.bytes.size(), sizes[0]);
  for (std::size_t member = 0; op.kind == Kind::all_gatherv && member < sizes.size() && !op.failure; ++member) {
    if (sizes[member] != op.counts[member])
      op.failure = wrong_size(op, static_cast<int>(member), op.counts[member], sizes[member]);
  }
  if (!whole) {
    if (op.kind == Kind::broadcast) {
      flow_broadcast(op, sizes[0]);
    } else {
      flow_all_gather(op, {sizes.begin(), sizes.end()});
    }
    start_flow(op);
    return;
  }
  bool const receives = op.kind == Kind::all_gatherv || (op.kind == Kind::broadcast && op.peer != rank());
  if (receives && !op.failure && !payload.empty() && payload.size() <= op.sink.bytes.size())
    move_memory(op.sink.bytes.data(), payload.data(), payload.size());
  op.completed = true;
}

void MessageTransport::flow_broadcast(PacketOp& op, std::size_t bytes) {
  auto const ranks = world_size();
  auto const place = (rank() - op.peer + ranks) % ranks;
  auto& flow = op.flow;
  auto buffer = op.sink.bytes;
  if (op.failure) {
    flow.scratch.resize(bytes);
    buffer = flow.scratch;
  }
  if (place != 0) {
    flow.from = (rank() - 1 + ranks) % ranks;
    flow.in = {buffer};
    flow.expected = bytes;
  } else {
    flow.lead = bytes;
  }
  if (place != ranks - 1) {
    flow.to = (rank() + 1) % ranks;
    flow.out = {buffer};
    flow.to_send = bytes;
  }
}

void MessageTransport::flow_all_gather(PacketOp& op, std::vector<std::size_t> const& sizes) {
  auto const ranks = world_size();
  auto const total = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  auto& flow = op.flow;
  auto buffer = op.sink.bytes;
  if (op.failure) {  // the others' bytes go on around the ring all the same
    flow.scratch.resize(total);
    buffer = flow.scratch;
  }
  std::vector<std::span<std::byte>> blocks;
  for (std::size_t offset = 0; auto const size : sizes) {
    blocks.push_back(buffer.subspan(offset, size));
    offset += size;
  }
  auto const block = [&](int member) { return blocks[static_cast<std::size_t>((member % ranks + ranks) % ranks)]; };
  auto const own = block(rank());
  if (!own.empty() && own.data() != op.source.bytes.data()) move_memory(own.data(), op.source.bytes.data(), own.size());
  if (ranks == 1) return;
  flow.from = (rank() - 1 + ranks) % ranks;
  flow.to = (rank() + 1) % ranks;
  flow.lead = own.size();
  flow.expected = total - own.size();
  flow.to_send = total - block(rank() + 1).size();
  for (int step = 1; step < ranks; ++step) flow.in.push_back(block(rank() - step));
  for (int step = 0; step < ranks - 1; ++step) flow.out.emplace_back(block(rank() - step));
}

void MessageTransport::start_flow(PacketOp& op) {
  op.flowing = true;
  auto const round = op.round;
  if (auto const found = early_flow_.find(round); found != early_flow_.end()) {
    auto const pieces = std::move(found->second);
    early_flow_.erase(found);
    for (auto const& piece : pieces) take_flow(piece.member, round, piece.bytes);
  }
  advance_flow(op);
}

void MessageTransport::take_flow(int member, std::uint64_t round, Bytes body) {
  if (failure_ || round < decided_) return;
  for (auto& [request_id, op] : operations_) {
    if (op.is_message() || op.round != round || !op.flowing) continue;
    take_bytes(op, member, body);
    advance_flow(op);
    return;
  }
  if (round > decided_) early_flow_[round].push_back({member, {body.begin(), body.end()}});
}

void MessageTransport::take_bytes(PacketOp& op, int member, Bytes body) {
  if (op.kind == Kind::exchange) {
    take_part(op, member, body);
  } else if (!op.flow.take(body)) {
    op.failure = wrong_size(op, op.flow.from, op.flow.expected, op.flow.received + body.size());
  }
}

bool MessageTransport::advance_flow(PacketOp& op) {
  if (!op.flowing || op.completed || failure_) return false;
  if (op.kind == Kind::exchange) return advance_exchange(op);
  bool moved = false;
  while (op.flow.to >= 0 && network_->has_space(job_rank(op.flow.to))) {
    auto const piece = op.flow.next(chunk_bytes);
    if (piece.empty()) break;
    network_->send(job_rank(op.flow.to),
                   {.kind = PacketKind::flow, .group = identity_.number, .round = op.round, .bytes = op.flow.to_send},
                   piece);
    op.flow.sent += piece.size();
    moved = true;
  }
  if (op.flow.complete()) op.completed = true;
  return moved;
}

bool MessageTransport::advance() {
  bool moved = false;
  for (auto& [request_id, op] : operations_) moved = advance_flow(op) || moved;
  for (int member = 0; member < world_size(); ++member) moved = advance_sends(member) || moved;
  return moved;
}

}  // namespace crossrank::message
