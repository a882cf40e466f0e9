#include "collectives/shm/staged_move.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "collectives/algorithms/exchange_table.hpp"
#include "lib/core/as_size.hpp"

namespace crossrank::shm {
namespace {

/// Bytes of a stream in one step, when `streams` of them share an area.
std::size_t piece_of(std::size_t streams, std::size_t longest) {
  auto const share = step_bytes / std::max<std::size_t>(streams, 1) / line_bytes * line_bytes;
  return std::min(std::max(share, line_bytes), whole_lines(longest));
}

/// How much of a stream of `length` moves in step `number`.
std::size_t piece_at(std::size_t length, std::size_t number, std::size_t piece) {
  auto const begin = number * piece;
  return begin >= length ? 0 : std::min(piece, length - begin);
}

/// Bytes of the header of an exchange: whether all lengths are equal, what the rank sends, what it expects.
std::size_t header_of(std::size_t ranks) { return whole_lines((1 + 2 * ranks) * sizeof(std::uint64_t)); }

/// Returns 1 + the length that all streams have, or 0 if they differ.
std::uint64_t equal_length(std::span<std::size_t const> send, std::span<std::size_t const> receive) {
  if (send.empty()) return 0;
  auto const is_same = [first = send.front()](std::size_t length) { return length == first; };
  return std::ranges::all_of(send, is_same) && std::ranges::all_of(receive, is_same) ? send.front() + 1 : 0;
}

}  // namespace

StagedMove::StagedMove(node::NodeComm& comm, int rank, Arguments arguments)
    : comm_(comm),
      rank_(as_size(rank)),
      arguments_(std::move(arguments)),
      longest_(
          std::max<std::size_t>(arguments_.longest, 1)),  // a rank that moves nothing still takes part in the round
      piece_(piece_of(arguments_.streams == Streams::shared ? 1 : arguments_.incoming.size(), longest_)) {}

bool StagedMove::step(std::size_t number, AreaAllocator& own, PeerAreas const& peers) {
  bool const more = number * piece_ < longest_;
  node::CopyBatch copies(comm_);
  if (number > 0) take(number - 1, peers, copies);
  if (more) put(number, own, copies);
  copies.run();
  return more;
}

/// Peers may read a piece in place until the next barrier round. No round follows the last piece, so it is copied.
bool StagedMove::expose(std::size_t number, AreaAllocator& own) const {
  if (arguments_.streams != Streams::shared || arguments_.outgoing.empty() || (number + 1) * piece_ >= longest_)
    return false;
  auto const bytes = arguments_.outgoing.front();
  auto const now = piece_at(bytes.size(), number, piece_);
  return now != 0 && own.expose(bytes.subspan(number * piece_, now));
}

void StagedMove::put(std::size_t number, AreaAllocator& own, node::CopyBatch& copies) const {
  bool const exposed = expose(number, own);
  auto const area = arguments_.outgoing.empty() || exposed ? Area{} : own.take(arguments_.outgoing.size() * piece_);
  auto const at = number * piece_;
  bool const shared = arguments_.streams == Streams::shared;
  for (std::size_t stream = 0; stream < arguments_.outgoing.size(); ++stream) {
    auto const bytes = arguments_.outgoing[stream];
    auto const now = piece_at(bytes.size(), number, piece_);
    if (now == 0) continue;
    if (!exposed && (shared || stream != rank_))
      copies.add(area.at + stream * piece_, bytes.data() + at, now, area.stores);
    // A rank copies its own part here, where it reads the stream anyway.
    auto const to = shared || stream == rank_ ? arguments_.incoming[rank_] : MutableBytes{};
    if (!to.empty() && to.data() != bytes.data())
      copies.add(to.data() + at, bytes.data() + at, now, arguments_.results);
  }
}

void StagedMove::take(std::size_t number, PeerAreas const& peers, node::CopyBatch& copies) const {
  auto const offset = arguments_.streams == Streams::shared ? 0 : rank_ * piece_;
  for (std::size_t from = 0; from < arguments_.incoming.size(); ++from) {
    auto const to = arguments_.incoming[from];
    auto const now = piece_at(to.size(), number, piece_);
    if (from != rank_ && now != 0)
      copies.add(to.data() + number * piece_, peers.at(from, offset, now), now, arguments_.results);
  }
}

// ---------------------------------------------------------------- all_to_allv

StagedExchange::StagedExchange(node::NodeComm& comm, std::string const& group, int rank, Arguments arguments)
    : comm_(comm),
      group_(group),
      rank_(as_size(rank)),
      ranks_(arguments.send.size()),
      arguments_(std::move(arguments)),
      piece_(piece_of(ranks_, step_bytes)),
      header_bytes_(header_of(ranks_)),
      own_equal_(equal_length(arguments_.send, arguments_.receive)) {}

std::size_t StagedExchange::most_staged(std::size_t ranks, std::size_t bytes) noexcept {
  return header_of(ranks) + std::min(bytes, step_bytes) + ranks * line_bytes;
}

/// The parts lie close together, so that a short exchange touches few lines.
std::size_t StagedExchange::place(std::size_t from, std::size_t number) const noexcept {
  std::size_t at = number == 0 ? header_bytes_ : 0;
  if (all_equal_) return at + (rank_ - (from < rank_ ? 1 : 0)) * whole_lines(piece_at(longest_, number, piece_));
  for (std::size_t other = 0; other < rank_; ++other) {
    if (other != from) at += whole_lines(piece_at(sends(from, other), number, piece_));
  }
  return at;
}

/// Every rank reads what all ranks say, so all come to the same result.
void StagedExchange::read_headers(PeerAreas const& peers) {
  all_equal_ = own_equal_ != 0;
  for (std::size_t member = 0; all_equal_ && member < ranks_; ++member) {
    std::uint64_t equal = own_equal_;
    if (member != rank_) std::memcpy(&equal, peers.at(member, 0, sizeof equal), sizeof equal);
    all_equal_ = equal == own_equal_;
  }
  if (all_equal_) {
    longest_ = own_equal_ - 1;
  } else {
    read_table(peers);
  }
}

/// All ranks find the same disagreement and the same length.
void StagedExchange::read_table(PeerAreas const& peers) {
  auto const row_bytes = ranks_ * sizeof(std::uint64_t);
  table_.resize(2 * ranks_ * ranks_);
  std::copy(arguments_.send.begin(), arguments_.send.end(), &sends(rank_, 0));
  auto* const expects = &table_[ranks_ * ranks_];
  for (std::size_t member = 0; member < ranks_; ++member) {
    auto* const row = &expects[member * ranks_];
    if (member == rank_) {
      std::copy(arguments_.receive.begin(), arguments_.receive.end(), row);
    } else {
      auto const* const header = peers.at(member, sizeof own_equal_, 2 * row_bytes);
      std::memcpy(&sends(member, 0), header, row_bytes);
      std::memcpy(row, header + row_bytes, row_bytes);
    }
  }
  for (std::size_t from = 0; from < ranks_; ++from) {
    for (std::size_t to = 0; to < ranks_; ++to) {
      auto const sent = sends(from, to);
      auto const expected = expects[to * ranks_ + from];
      if (sent != expected) {
        throw algorithms::ExchangeMismatch{from, to, sent, expected}.error({.operation = "all_to_allv",
                                                                            .group = group_,
                                                                            .rank = static_cast<int>(rank_),
                                                                            .world_size = static_cast<int>(ranks_)});
      }
      longest_ = std::max(longest_, sent);
    }
  }
}

void StagedExchange::put(std::size_t number, AreaAllocator& own, node::CopyBatch& copies) const {
  std::size_t at = number == 0 ? header_bytes_ : 0;
  auto needed = at;
  for (std::size_t to = 0; to < ranks_; ++to) {
    if (to != rank_) needed += whole_lines(piece_at(arguments_.send[to], number, piece_));
  }
  auto const area = own.take(needed);
  if (number == 0) {
    auto* const counts = reinterpret_cast<std::uint64_t*>(area.at);
    *counts = own_equal_;
    std::copy(arguments_.receive.begin(), arguments_.receive.end(),
              std::copy(arguments_.send.begin(), arguments_.send.end(), counts + 1));
  }
  std::size_t part = 0;
  std::size_t received = 0;
  for (std::size_t to = 0; to < ranks_; ++to) {
    auto const now = piece_at(arguments_.send[to], number, piece_);
    auto const* const bytes = arguments_.in.bytes.data() + part + number * piece_;
    if (to != rank_) {
      if (now != 0) copies.add(area.at + at, bytes, now, area.stores);
      at += whole_lines(now);
    } else if (arguments_.receive[to] ==
               arguments_.send[to]) {  // otherwise all ranks find the disagreement in the next step
      copies.add(arguments_.out.bytes.data() + received + number * piece_, bytes, now, arguments_.results);
    }
    part += arguments_.send[to];
    received += arguments_.receive[to];
  }
}

void StagedExchange::take(std::size_t number, PeerAreas const& peers, node::CopyBatch& copies) const {
  std::size_t part = 0;
  for (std::size_t from = 0; from < ranks_; ++from) {
    auto* const to = arguments_.out.bytes.data() + part + number * piece_;
    auto const now = piece_at(arguments_.receive[from], number, piece_);
    if (from != rank_ && now != 0) copies.add(to, peers.at(from, place(from, number), now), now, arguments_.results);
    part += arguments_.receive[from];
  }
}

bool StagedExchange::step(std::size_t number, AreaAllocator& own, PeerAreas const& peers) {
  if (number == 1) read_headers(peers);
  bool const more = number == 0 || number * piece_ < longest_;
  node::CopyBatch copies(comm_);
  if (number > 0) take(number - 1, peers, copies);
  if (more) put(number, own, copies);
  copies.run();
  return more;
}

}  // namespace crossrank::shm
