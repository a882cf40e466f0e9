#include "lib/node/group/group_members.hpp"

#include <atomic>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/at_rank.hpp"

namespace crossrank::node {

GroupMembers::GroupMembers(std::shared_ptr<NodeComm> comm, std::uint32_t block, std::string name, int rank,
                           std::vector<int> node_ranks)
    : comm_(std::move(comm)),
      block_(block),
      name_(std::move(name)),
      rank_(rank),
      size_(static_cast<int>(node_ranks.size())),
      node_ranks_(std::move(node_ranks)),
      header_(&comm_->blocks().header(block)),
      blocks_(comm_->blocks().members(block)),
      channels_(comm_->blocks().channels(block, size_)) {
  comm_->blocks().join(block, rank_);
}

std::vector<int> GroupMembers::node_ranks_of(std::vector<int> const& members) const {
  std::vector<int> on_node;
  on_node.reserve(members.size());
  for (int const member : members) on_node.push_back(node_rank(member));
  return on_node;
}

std::span<std::byte const> GroupMembers::arena_range(int member, std::uint64_t offset, std::uint64_t bytes) const {
  auto const all = comm_->arena_bytes();
  if (offset > all || bytes > all - offset) {
    throw FormatError({.operation = "read a contribution",
                       .message = "a payload outside its arena",
                       .expected = "at most " + std::to_string(all) + " bytes",
                       .got = std::to_string(bytes) + " bytes at " + std::to_string(offset),
                       .resource = "arena of rank " + std::to_string(node_rank(member)),
                       .failed_ranks = {member},
                       .section = "arrival"});
  }
  return {comm_->arena_of(node_rank(member)) + offset, bytes};
}

bool GroupMembers::has_left(int member) const noexcept {
  auto const how = static_cast<HandleStatus>(block_of(member).gone.load(std::memory_order_acquire));
  if (how != HandleStatus::kept) return how == HandleStatus::dropped;
  return comm_->has_departed(node_rank(member)) && !is_dead(member);
}

std::vector<int> GroupMembers::dead() const {
  std::vector<int> dead;
  for (int member = 0; member < size_; ++member) {
    if (member != rank_ && is_dead(member)) dead.push_back(member);
  }
  return dead;
}

std::string GroupMembers::describe_departure(int member) const {
  auto state = comm_->describe(node_rank(member));
  switch (static_cast<HandleStatus>(block_of(member).gone.load(std::memory_order_acquire))) {
    case HandleStatus::dropped: return "it dropped its handle without closing the group; " + state;
    case HandleStatus::dropped_by_exception: return "an exception took its handle of the group; " + state;
    case HandleStatus::kept: break;
  }
  return state;
}

std::function<bool()> GroupMembers::everyone_left() const {
  // The arena of the communicator calls this function. So the communicator outlives it, and the function must not keep
  // the communicator alive.
  return [comm = comm_.get(), block = block_, use_word = header_->use_word.load(std::memory_order_relaxed),
          ranks = node_ranks_, self = rank_] {
    auto const reused = [&] {
      return comm->blocks().header(block).use_word.load(std::memory_order_acquire) != use_word;
    };
    if (reused()) return true;
    for (int member = 0; member < static_cast<int>(ranks.size()); ++member) {
      auto const& member_block = comm->blocks().members(block)[member];
      bool const left = member == self || member_block.gone.load(std::memory_order_acquire) != 0 ||
                        comm->has_departed(at_rank(ranks, member));
      if (!left) return reused();
    }
    return true;
  };
}

std::function<bool()> GroupMembers::message_taken(int dst, std::uint64_t number) const {
  // As above. A block in a later use has been left by all its members.
  return [comm = comm_.get(), block = block_, use_word = header_->use_word.load(std::memory_order_relaxed),
          channel = &this->channel(rank_, dst), reader = &block_of(dst), node_rank = node_rank(dst), number] {
    return channel->received.load(std::memory_order_acquire) >= number ||
           reader->gone.load(std::memory_order_acquire) != 0 || comm->has_departed(node_rank) ||
           comm->blocks().header(block).use_word.load(std::memory_order_acquire) != use_word;
  };
}

void GroupMembers::ring_others() const noexcept {
  for (int member = 0; member < size_; ++member) {
    if (member != rank_) ring(member);
  }
}

void GroupMembers::announce_drop(HandleStatus how) const noexcept {
  own_block().gone.store(static_cast<std::uint32_t>(how), std::memory_order_seq_cst);
  comm_->header().departures.fetch_add(1, std::memory_order_seq_cst);
  ring_others();
}

void GroupMembers::leave() const noexcept { comm_->blocks().leave(block_, rank_); }

}  // namespace crossrank::node
