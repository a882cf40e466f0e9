#include "lib/node/wait/wait_for_graph.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/node/memory/control_layout.hpp"
#include "lib/node/memory/queue_layout.hpp"
#include "lib/node/group/atomic_ops.hpp"

namespace crossrank::node {
namespace {

/// Returns the last round at which a member has arrived; 0 for none.
std::uint64_t last_round(MemberBlock const& member) noexcept {
  std::uint64_t last = 0;
  for (auto const& line : member.arrivals) {
    auto const word = line.round.load(std::memory_order_acquire);
    if (ArrivalWord{word}.vetoed()) continue;
    last = std::max(last, word + (line.also.load(std::memory_order_relaxed) != 0 ? 1 : 0));
  }
  return last;
}

/// Finds the ranks that a rank waits for, block by block.
class Blockers {
 public:
  Blockers(NodeComm const& comm, int rank) : comm_(comm), rank_(static_cast<std::uint32_t>(rank)) {}

  [[nodiscard]] std::vector<int> find() {
    auto const& blocks = comm_.blocks();
    for (std::uint32_t index = 0; index < blocks.made(); ++index) {
      auto const state = BlockUse::unpack(blocks.header(index).use_word.load(std::memory_order_acquire)).state;
      if (state == BlockState::ready) in_group({blocks.members(index), as_size(blocks.member_count(index))});
      auto const endpoints = state == BlockState::queue ? blocks.endpoint_count(index) : 0;
      if (endpoints > 1) in_queue({blocks.endpoints(index), as_size(endpoints)}, blocks.queue(index).chunks);
    }
    return std::move(found_);
  }

 private:
  void in_group(std::span<MemberBlock const> members) {
    auto const own = std::find_if(members.begin(), members.end(), [&](MemberBlock const& member) {
      return member.node_rank.load(std::memory_order_relaxed) == rank_ &&
             (member.doorbell.load(std::memory_order_acquire) & atomic_ops::asleep_bit) != 0;
    });
    if (own == members.end()) return;
    auto const round = last_round(*own);
    for (auto const& member : members) {
      if (last_round(member) < round) add(member.node_rank.load(std::memory_order_relaxed));
    }
  }

  void in_queue(std::span<QueueEndpoint const> endpoints, std::uint32_t chunks) {
    auto const own = std::find_if(endpoints.begin(), endpoints.end(), [&](QueueEndpoint const& endpoint) {
      return holder_of(endpoint) == rank_ &&
             QueueNote::says_waiting(endpoint.note.kind.load(std::memory_order_acquire));
    });
    if (own == endpoints.end()) return;
    auto const written = endpoints.front().cursor.load(std::memory_order_acquire);
    if (own != endpoints.begin()) {
      if (atomic_ops::published(own->cursor) >= written) add(holder_of(endpoints.front()));
      return;
    }
    for (auto const& reader : endpoints.subspan(1)) {
      if (!has_closed(state_of(reader)) && atomic_ops::published(reader.cursor) + chunks <= written)
        add(holder_of(reader));
    }
  }

  void add(std::uint32_t rank) {
    if (rank < static_cast<std::uint32_t>(comm_.ranks()) && rank != rank_) found_.push_back(static_cast<int>(rank));
  }

  NodeComm const& comm_;
  std::uint32_t rank_;
  std::vector<int> found_{};
};

}  // namespace

std::vector<int> blocking_ranks(NodeComm const& comm, std::vector<int> const& direct, int waiter) {
  auto seen = per_rank<bool>(comm.ranks());
  if (waiter >= 0) at_rank(seen, waiter) = true;
  std::vector<int> ends;
  for (auto open = direct; !open.empty();) {
    int const rank = open.back();
    open.pop_back();
    if (at_rank(seen, rank)) continue;
    at_rank(seen, rank) = true;
    auto const blockers = comm.has_departed(rank) ? std::vector<int>{} : Blockers(comm, rank).find();
    if (blockers.empty()) ends.push_back(rank);
    open.insert(open.end(), blockers.begin(), blockers.end());
  }
  if (ends.empty()) ends = direct;
  std::sort(ends.begin(), ends.end());
  return ends;
}

}  // namespace crossrank::node
