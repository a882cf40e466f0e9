#include "collectives/shm/staged_move.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/node/bulk_copy.hpp"

namespace crossrank::shm {
namespace {

constexpr std::size_t line = 64;

std::size_t whole_lines(std::size_t bytes) { return (bytes + line - 1) / line * line; }

/// Bytes of a stream in one step, when `streams` of them share an area.
std::size_t piece_of(std::size_t streams, std::size_t longest) {
  auto const most = std::max<std::size_t>(step_bytes / std::max<std::size_t>(streams, 1) / line * line, line);
  return std::min(most, whole_lines(longest));
}

/// How much of a stream of `length` moves in step `number`.
std::size_t piece_at(std::size_t length, std::size_t number, std::size_t piece) {
  auto const begin = number * piece;
  return begin >= length ? 0 : std::min(piece, length - begin);
}

}  // namespace

StagedMove::StagedMove(node::NodeDomain& domain, int rank, Plan plan)
    : domain_(domain),
      rank_(static_cast<std::size_t>(rank)),
      plan_(std::move(plan)),
      longest_(std::max<std::size_t>(plan_.longest, 1)),  // who moves nothing meets the others all the same
      piece_(piece_of(plan_.streams == Streams::shared ? 1 : plan_.incoming.size(), longest_)) {}

bool StagedMove::step(std::size_t number, std::byte* area, PeerAreas const& peers) {
  auto const whole = longest_ * plan_.incoming.size();
  if (number == 0 && !plan_.outgoing.empty()) {
    auto const own = plan_.outgoing[plan_.streams == Streams::shared ? 0 : rank_];
    auto const to = plan_.incoming[rank_];
    if (!to.empty() && to.data() != own.data()) node::bulk_copy_out(domain_, to.data(), own.data(), to.size(), whole);
  }
  // The area first: what peers wait for goes before what only this rank reads.
  for (std::size_t stream = 0; stream < plan_.outgoing.size(); ++stream) {
    if (plan_.streams == Streams::per_destination && stream == rank_) continue;
    auto const bytes = plan_.outgoing[stream];
    auto const now = piece_at(bytes.size(), number, piece_);
    if (now != 0) node::bulk_copy(domain_, area + stream * piece_, bytes.data() + number * piece_, now);
  }
  for (std::size_t from = 0; number > 0 && from < plan_.incoming.size(); ++from) {
    auto const to = plan_.incoming[from];
    auto const now = piece_at(to.size(), number - 1, piece_);
    if (from == rank_ || now == 0) continue;
    auto const offset = plan_.streams == Streams::shared ? 0 : rank_ * piece_;
    node::bulk_copy_out(domain_, to.data() + (number - 1) * piece_, peers.at(from, offset, now), now, whole);
  }
  return number * piece_ < longest_;
}

// ---------------------------------------------------------------- all_to_allv

StagedExchange::StagedExchange(node::NodeDomain& domain, std::string group, int rank, Plan plan)
    : domain_(domain),
      group_(std::move(group)),
      rank_(static_cast<std::size_t>(rank)),
      plan_(std::move(plan)),
      // What others send is not known yet, and all ranks need the same pieces.
      piece_(piece_of(plan_.send.size(), step_bytes)),
      header_bytes_(whole_lines(2 * plan_.send.size() * sizeof(std::uint64_t))) {}

void StagedExchange::write_header(std::byte* area) const {
  std::vector<std::uint64_t> counts(plan_.send.begin(), plan_.send.end());
  counts.insert(counts.end(), plan_.receive.begin(), plan_.receive.end());
  std::memcpy(area, counts.data(), counts.size() * sizeof(std::uint64_t));
}

/// Every rank reads what all send and expect: so all find the same disagreement, and the same length.
void StagedExchange::read_headers(PeerAreas const& peers) {
  auto const n = plan_.send.size();
  std::vector<std::vector<std::uint64_t>> rows(n, std::vector<std::uint64_t>(2 * n));
  for (std::size_t member = 0; member < n; ++member) {
    auto& row = rows[member];
    if (member == rank_) {
      std::copy(plan_.send.begin(), plan_.send.end(), row.begin());
      std::copy(plan_.receive.begin(), plan_.receive.end(), row.begin() + static_cast<std::ptrdiff_t>(n));
    } else {
      auto const bytes = row.size() * sizeof(std::uint64_t);
      std::memcpy(row.data(), peers.at(member, 0, bytes), bytes);
    }
  }
  for (std::size_t from = 0; from < n; ++from) {
    for (std::size_t to = 0; to < n; ++to) {
      auto const sent = rows[from][to];
      auto const expected = rows[to][n + from];
      if (sent != expected) disagree(from, to, sent, expected);
      if (from != to) longest_ = std::max(longest_, static_cast<std::size_t>(sent));
    }
  }
}

void StagedExchange::disagree(std::size_t from, std::size_t to, std::uint64_t sent, std::uint64_t expected) const {
  throw MismatchError({.operation = "all_to_allv",
                       .message = "rank " + std::to_string(from) + " sends another number of bytes than rank " +
                                  std::to_string(to) + " expects of it",
                       .expected = std::to_string(expected),
                       .got = std::to_string(sent),
                       .group = group_,
                       .rank = static_cast<int>(rank_),
                       .world_size = static_cast<int>(plan_.send.size()),
                       .culprits = {static_cast<int>(from), static_cast<int>(to)}});
}

bool StagedExchange::step(std::size_t number, std::byte* area, PeerAreas const& peers) {
  if (number == 0) write_header(area);
  if (number == 1) read_headers(peers);
  std::size_t sent = 0;
  std::size_t received = 0;
  for (std::size_t peer = 0; peer < plan_.send.size(); ++peer) {
    auto const outgoing = piece_at(plan_.send[peer], number, piece_);
    auto const incoming = number == 0 ? 0 : piece_at(plan_.receive[peer], number - 1, piece_);
    if (peer != rank_) {
      if (outgoing != 0) {
        node::bulk_copy(domain_, area + header_bytes_ + peer * piece_, plan_.in.bytes.data() + sent + number * piece_,
                        outgoing);
      }
      if (incoming != 0) {
        node::bulk_copy_out(domain_, plan_.out.bytes.data() + received + (number - 1) * piece_,
                            peers.at(peer, header_bytes_ + rank_ * piece_, incoming), incoming, plan_.out.bytes.size());
      }
    } else if (number == 1) {
      // Only now is it known that the counts agree, and so that both are as long.
      node::bulk_copy_out(domain_, plan_.out.bytes.data() + received, plan_.in.bytes.data() + sent, plan_.send[peer],
                          plan_.out.bytes.size());
    }
    sent += plan_.send[peer];
    received += plan_.receive[peer];
  }
  return number == 0 || number * piece_ < longest_;
}

}  // namespace crossrank::shm
