#include "lib/node/wait_chain.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "lib/node/ring_layout.hpp"
#include "lib/node/steps.hpp"

namespace crossrank::node {
namespace {

/// The last round that a member has arrived at; 0 for none.
std::uint64_t last_round(MemberBlock const& member) noexcept {
  std::uint64_t last = 0;
  for (auto const& line : member.arrivals) {
    auto const word = line.round.load(std::memory_order_acquire);
    if (ArrivalWord{word}.withheld()) continue;
    last = std::max(last, word + (line.also.load(std::memory_order_relaxed) != 0 ? 1 : 0));
  }
  return last;
}

/// Finds for whom a rank waits, in one block after the other.
class Blockers {
 public:
  Blockers(NodeDomain const& domain, int rank) : domain_(domain), rank_(static_cast<std::uint32_t>(rank)) {}

  [[nodiscard]] std::vector<int> find() {
    auto const& blocks = domain_.blocks();
    for (std::uint32_t index = 0; index < blocks.made(); ++index) {
      auto const state = BlockLife::unpack(blocks.header(index).life.load(std::memory_order_acquire)).state;
      if (state == BlockState::ready)
        in_group({blocks.members(index), static_cast<std::size_t>(blocks.member_count(index))});
      auto const ends = state == BlockState::queue ? blocks.end_count(index) : 0;
      if (ends > 1) in_queue({blocks.ends(index), static_cast<std::size_t>(ends)}, blocks.queue(index).chunks);
    }
    return std::move(found_);
  }

 private:
  void in_group(std::span<MemberBlock const> members) {
    auto const own = std::find_if(members.begin(), members.end(), [&](MemberBlock const& member) {
      return member.domain_rank.load(std::memory_order_relaxed) == rank_ &&
             (member.bell.load(std::memory_order_acquire) & steps::asleep_bit) != 0;
    });
    if (own == members.end()) return;
    auto const round = last_round(*own);
    for (auto const& member : members) {
      if (last_round(member) < round) add(member.domain_rank.load(std::memory_order_relaxed));
    }
  }

  void in_queue(std::span<QueueEnd const> ends, std::uint32_t chunks) {
    auto const own = std::find_if(ends.begin(), ends.end(), [&](QueueEnd const& end) {
      auto const kind = end.note.kind.load(std::memory_order_acquire);
      return end.domain_rank.load(std::memory_order_relaxed) == rank_ &&
             (kind == QueueNote::waits || kind == QueueNote::timed_out);
    });
    if (own == ends.end()) return;
    auto const written = ends.front().cursor.load(std::memory_order_acquire);
    if (own != ends.begin()) {
      if (steps::published(own->cursor) >= written) add(ends.front().domain_rank.load(std::memory_order_relaxed));
      return;
    }
    for (auto const& reader : ends.subspan(1)) {
      if (!has_closed(state_of(reader)) && steps::published(reader.cursor) + chunks <= written)
        add(reader.domain_rank.load(std::memory_order_relaxed));
    }
  }

  void add(std::uint32_t rank) {
    if (rank < static_cast<std::uint32_t>(domain_.ranks()) && rank != rank_) found_.push_back(static_cast<int>(rank));
  }

  NodeDomain const& domain_;
  std::uint32_t rank_;
  std::vector<int> found_{};
};

}  // namespace

std::vector<int> ends_of_wait(NodeDomain const& domain, std::vector<int> const& direct, int waiter) {
  std::vector<bool> seen(static_cast<std::size_t>(domain.ranks()), false);
  if (waiter >= 0) seen[static_cast<std::size_t>(waiter)] = true;
  std::vector<int> ends;
  for (auto open = direct; !open.empty();) {
    int const rank = open.back();
    open.pop_back();
    if (seen[static_cast<std::size_t>(rank)]) continue;
    seen[static_cast<std::size_t>(rank)] = true;
    auto const its = domain.has_departed(rank) ? std::vector<int>{} : Blockers(domain, rank).find();
    if (its.empty()) ends.push_back(rank);
    open.insert(open.end(), its.begin(), its.end());
  }
  if (ends.empty()) ends = direct;
  std::sort(ends.begin(), ends.end());
  return ends;
}

}  // namespace crossrank::node
