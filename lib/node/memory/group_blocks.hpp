#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/node/memory/control_layout.hpp"
#include "lib/node/memory/queue_layout.hpp"
#include "lib/platform/files/fd.hpp"

namespace crossrank::node {

/// The group blocks of a control segment.
///
/// A block is in use from `make` until all its members have left or died. A block becomes garbage if it was made but
/// never announced, because its maker died or the ranks did not agree, and the split that would have announced it has
/// failed. A rank that needs a block takes garbage like a free block.
class GroupBlocks {
 public:
  /// The barrier round that announces a block: its group and number. Round 0: no round announces it, because all ranks
  /// know it.
  struct Origin {
    std::uint32_t parent = 0;
    std::uint64_t round = 0;
  };

  GroupBlocks(std::byte* control, int ranks, int rank, std::shared_ptr<platform::Fd> control_fd);

  /// A block, and the use of it that this rank has made.
  struct Made {
    std::uint32_t index = 0;
    BlockUse use{};
  };
  /// Takes a block for `members` (ranks of the node). `UnavailableError` when there are too many at once.
  [[nodiscard]] Made make(std::vector<int> const& members, std::string const& name, Origin origin);
  /// Frees a block that no rank will join. Does nothing if another rank has found that out before and taken the block.
  void discard(Made const& made) noexcept;
  void join(std::uint32_t index, int member) noexcept;
  /// Leaves a block. The last member to leave frees it.
  void leave(std::uint32_t index, int member) noexcept;

  /// Takes a block for a queue with free endpoints. Other ranks do not see it before `open_queue`. It is in use until
  /// the writer and all readers have left. `UsageError` when there are more readers than a block has space for.
  [[nodiscard]] std::uint32_t make_queue(QueueHeader const& queue, std::string const& name);
  void open_queue(std::uint32_t index) noexcept;
  [[nodiscard]] QueueHeader& queue(std::uint32_t index) const noexcept;
  [[nodiscard]] QueueEndpoint* endpoints(std::uint32_t index) const noexcept;

  [[nodiscard]] GroupHeader& header(std::uint32_t index) const noexcept;
  [[nodiscard]] MemberBlock* members(std::uint32_t index) const noexcept;
  /// Returns the channels of a group of `size` members.
  [[nodiscard]] Channel* channels(std::uint32_t index, int size) const noexcept;
  /// Returns the index from which on blocks have never been used; at most the number of blocks, whatever the segment
  /// contains.
  [[nodiscard]] std::uint32_t made() const noexcept;
  /// Returns the number of members of a group's block or endpoints of a queue's; at most as many as the block has space
  /// for.
  [[nodiscard]] int member_count(std::uint32_t index) const noexcept;
  [[nodiscard]] int endpoint_count(std::uint32_t index) const noexcept;
  /// Returns the name of a group or queue.
  [[nodiscard]] std::string name(std::uint32_t index) const;
  /// Throws `FormatError` unless block `index`, named by a peer, is a group of exactly these ranks of the node that
  /// `origin` announces.
  void require_group(std::uint32_t index, std::vector<int> const& members, Origin origin,
                     std::string const& operation) const;

 private:
  [[nodiscard]] RankRecord const* records() const noexcept {
    return reinterpret_cast<RankRecord const*>(control_ + geometry_.records_offset());
  }
  /// Returns whether a rank has departed. Returns false for an invalid rank: a block is freed only on proof.
  [[nodiscard]] bool departed(std::uint32_t rank) const noexcept;
  [[nodiscard]] bool announced(GroupHeader const& group) const noexcept;
  [[nodiscard]] bool all_left(std::uint32_t index) const noexcept;
  [[nodiscard]] bool is_garbage(std::uint32_t index, BlockUse use) const noexcept;
  [[nodiscard]] bool queue_is_over(std::uint32_t index) const noexcept;
  /// Returns whether a living rank rings doorbells of groups and queues that it may have no part in.
  [[nodiscard]] bool is_anyone_ringing() const noexcept;
  /// Takes a garbage block with its pages, or returns nothing if all blocks are in use. Sets `rung` if it has passed
  /// over garbage that a rank may still be ringing.
  [[nodiscard]] std::optional<std::uint32_t> try_claim(std::size_t bytes, std::string const& name, bool& rung);
  /// Takes a garbage block with its pages. The caller fills it.
  [[nodiscard]] std::uint32_t claim(std::size_t bytes, std::string const& name);
  /// Marks a block as made. Returns its use.
  BlockUse open(std::uint32_t index, BlockState state) noexcept;
  void fill(std::uint32_t index, std::vector<int> const& members, std::string const& name, Origin origin) noexcept;
  void free(std::uint32_t index, BlockUse from) noexcept;

  std::byte* control_;
  ControlGeometry geometry_;
  int rank_;
  std::shared_ptr<platform::Fd> control_fd_;
};

}  // namespace crossrank::node
