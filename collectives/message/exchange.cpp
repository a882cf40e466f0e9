#include "collectives/message/message_transport.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "collectives/algorithms/exchange_table.hpp"
#include "lib/tensor/copy_memory.hpp"

/// Parts that differ for each member: one round in which all say what they send and expect, then straight there.
namespace crossrank::message {

using algorithms::ExchangeTable;
using spi::RequestId;

namespace {

/// Parts that follow one another.
std::vector<Exchange::Transfer> parts_of(std::span<std::size_t const> counts) {
  std::vector<Exchange::Transfer> parts;
  for (std::size_t offset = 0; auto const bytes : counts) {
    parts.push_back({.offset = offset, .bytes = bytes});
    offset += bytes;
  }
  return parts;
}

bool is_small(std::span<std::size_t const> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0}) <= small_payload;
}

}  // namespace

/// The rows of all travel with the verdict.
bool MessageTransport::can_exchange() const noexcept {
  auto const ranks = static_cast<std::size_t>(world_size());
  return ranks * ExchangeTable::row_bytes(ranks) <= chunk_bytes;
}

std::optional<RequestId> MessageTransport::post_all_to_allv(spi::Signature signature, spi::Source const& in,
                                                            std::span<std::size_t const> send_counts,
                                                            spi::Sink const& out,
                                                            std::span<std::size_t const> recv_counts) {
  if (!can_exchange()) return {};
  auto const row = ExchangeTable::row(send_counts, recv_counts);
  return post_round(signature,
                    {.kind = Kind::exchange,
                     .source = in,
                     .sink = out,
                     .exchange = {.in = parts_of(recv_counts), .out = parts_of(send_counts)}},
                    std::as_bytes(std::span(row)), flag_data);
}

std::optional<RequestId> MessageTransport::post_gatherv(spi::Signature signature, spi::Source const& mine,
                                                        std::span<std::size_t const> counts, spi::Sink const& out,
                                                        int root) {
  if (is_small(counts)) return {};  // the round alone carries them
  std::vector<std::size_t> const none(counts.size());
  auto sends = none;
  sends[static_cast<std::size_t>(root)] = mine.bytes.size();
  return post_all_to_allv(signature, mine, sends, out, rank() == root ? counts : std::span(none));
}

std::optional<RequestId> MessageTransport::post_scatterv(spi::Signature signature, spi::Source const& all,
                                                         std::span<std::size_t const> counts, spi::Sink const& mine,
                                                         int root) {
  if (is_small(counts)) return {};
  std::vector<std::size_t> const none(counts.size());
  auto expects = none;
  expects[static_cast<std::size_t>(root)] = mine.bytes.size();
  return post_all_to_allv(signature, all, rank() == root ? counts : std::span(none), mine, expects);
}

void MessageTransport::start_exchange(PacketOp& op, Bytes rows) {
  ExchangeTable table(static_cast<std::size_t>(world_size()));
  auto const bytes = table.bytes();
  std::memcpy(bytes.data(), rows.data(), std::min(bytes.size(), rows.size()));
  try {
    table.require_agreement(op.name(), name(), rank());
  } catch (Error const&) {  // the same on all: nothing moves
    op.failure = std::current_exception();
    op.completed = true;
    return;
  }
  auto const own = static_cast<std::size_t>(rank());
  auto& to_self = op.exchange.out[own];
  auto& from_self = op.exchange.in[own];
  if (to_self.bytes != 0) {
    move_memory(op.sink.bytes.data() + from_self.offset, op.source.bytes.data() + to_self.offset, to_self.bytes);
  }
  to_self.moved = to_self.bytes;
  from_self.moved = from_self.bytes;
  start_flow(op);
}

void MessageTransport::take_part(PacketOp& op, int member, Bytes body) {
  auto& part = op.exchange.in[static_cast<std::size_t>(member)];
  if (body.size() > part.bytes - part.moved) {
    op.failure = wrong_size(op, member, part.bytes, part.moved + body.size());
    return;
  }
  if (!body.empty()) copy_memory(op.sink.bytes.data() + part.offset + part.moved, body.data(), body.size());
  part.moved += body.size();
}

/// Each begins with its next neighbour, so that not all send to the same one.
bool MessageTransport::advance_exchange(PacketOp& op) {
  bool moved = false;
  for (int step = 1; step < world_size(); ++step) {
    auto const dst = (rank() + step) % world_size();
    auto& part = op.exchange.out[static_cast<std::size_t>(dst)];
    while (!part.complete() && network_->has_space(job_rank(dst))) {
      auto const piece =
          op.source.bytes.subspan(part.offset + part.moved, std::min(chunk_bytes, part.bytes - part.moved));
      network_->send(job_rank(dst),
                     {.kind = PacketKind::flow, .group = identity_.number, .round = op.round, .bytes = part.bytes},
                     piece);
      part.moved += piece.size();
      moved = true;
    }
  }
  if (op.exchange.open().empty()) op.completed = true;
  return moved;
}

}  // namespace crossrank::message
