#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/core/at_rank.hpp"
#include "lib/node/group/node_comm.hpp"
#include "lib/node/memory/control_layout.hpp"

namespace crossrank::node {

/// The members of a group of ranks of one node: who they are, their parts of the group's block in the control segment,
/// and whether they are still there.
///
/// A member is named by its rank in the group, `rank` is that of this process.
class GroupMembers {
 public:
  /// Joins the group block `block` as member `rank`. `node_ranks` are the ranks of the members on the node. The block
  /// has been checked to hold exactly these.
  GroupMembers(std::shared_ptr<NodeComm> comm, std::uint32_t block, std::string name, int rank,
               std::vector<int> node_ranks);
  ~GroupMembers() = default;
  GroupMembers(GroupMembers const&) = delete;
  GroupMembers& operator=(GroupMembers const&) = delete;

  [[nodiscard]] NodeComm& comm() const noexcept { return *comm_; }
  [[nodiscard]] std::shared_ptr<NodeComm> const& shared_comm() const noexcept { return comm_; }
  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  /// Returns the rank of a member on the node.
  [[nodiscard]] int node_rank(int member) const noexcept { return at_rank(node_ranks_, member); }
  /// Returns the ranks of several members on the node.
  [[nodiscard]] std::vector<int> node_ranks_of(std::vector<int> const& members) const;
  [[nodiscard]] RankRecord& record(int member) const noexcept { return comm_->record(node_rank(member)); }

  /// Returns the number of the group's block.
  [[nodiscard]] std::uint32_t block() const noexcept { return block_; }
  [[nodiscard]] GroupHeader& header() const noexcept { return *header_; }
  [[nodiscard]] MemberBlock& block_of(int member) const noexcept { return blocks_[member]; }
  [[nodiscard]] MemberBlock& own_block() const noexcept { return blocks_[rank_]; }
  [[nodiscard]] Channel& channel(int src, int dst) const noexcept { return channels_[src * size_ + dst]; }
  /// Returns a range of a member's arena. Throws `FormatError` if it does not lie inside.
  [[nodiscard]] std::span<std::byte const> arena_range(int member, std::uint64_t offset, std::uint64_t bytes) const;

  /// Returns whether a member has dropped its handle, has died or has left the node.
  [[nodiscard]] bool has_departed(int member) const noexcept {
    return block_of(member).gone.load(std::memory_order_acquire) != 0 || comm_->has_departed(node_rank(member));
  }
  /// Returns whether a departed member has dropped its handle or left the node cleanly, not by an exception or death.
  [[nodiscard]] bool has_left(int member) const noexcept;
  [[nodiscard]] bool is_dead(int member) const noexcept { return comm_->is_dead(node_rank(member)); }
  /// Returns the other members that are recorded as dead.
  [[nodiscard]] std::vector<int> dead() const;
  /// Describes what happened to a departed member: it died, left the node, or lives without its handle of this group.
  [[nodiscard]] std::string describe_departure(int member) const;
  /// Returns a function that tells whether all other members have dropped their handles or ended. It may be called
  /// when this object is gone.
  [[nodiscard]] std::function<bool()> everyone_left() const;

  /// Returns a function that tells whether `dst` has taken this member's message `number`, counted from 1, or has left.
  /// It may be called when this object is gone.
  [[nodiscard]] std::function<bool()> message_taken(int dst, std::uint64_t number) const;

  void ring(int member) const noexcept { node::ring(block_of(member).doorbell); }
  void ring_others() const noexcept;
  /// Tells the other members that this one drops its handle without closing the group.
  void announce_drop(HandleStatus how) const noexcept;
  /// Gives this member's part of the block back.
  void leave() const noexcept;

 private:
  std::shared_ptr<NodeComm> comm_;
  std::uint32_t block_;
  std::string name_;
  int rank_;
  int size_;
  std::vector<int> node_ranks_;
  GroupHeader* header_;
  MemberBlock* blocks_;
  Channel* channels_;
};

}  // namespace crossrank::node
