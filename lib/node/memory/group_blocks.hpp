#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/node/memory/control_layout.hpp"
#include "lib/platform/fd.hpp"

namespace crossrank::node {

/// The group blocks of a control segment.
///
/// A block is used from `make` until all its members have left, in order or by death. One that was made and never
/// announced, as its maker died in between or the ranks did not agree, is garbage as soon as the split that would have
/// announced it has failed. Whoever needs a block takes garbage like a free one.
class GroupBlocks {
 public:
  /// The barrier round that announces a block: of which group, in which round. Round 0: none, all ranks know it.
  struct Origin {
    std::uint32_t parent = 0;
    std::uint64_t round = 0;
  };

  GroupBlocks(std::byte* control, int ranks, int rank, std::shared_ptr<platform::Fd> control_fd);

  /// Takes a block for `members` (ranks of the node); `UnavailableError` when there are too many at once.
  [[nodiscard]] std::uint32_t make(std::vector<int> const& members, std::string const& name, Origin origin);
  /// Its maker: nobody will join it.
  void discard(std::uint32_t index) noexcept;
  void join(std::uint32_t index, int member) noexcept;
  /// The last member to leave frees the block.
  void leave(std::uint32_t index, int member) noexcept;

  /// Takes a block for a queue whose ends are free; nobody sees it before `open_queue`. It is used until the writer has
  /// gone and all readers have left. `UsageError` when there are more readers than a block has space for.
  [[nodiscard]] std::uint32_t make_queue(QueueHeader const& queue, std::string const& name);
  void open_queue(std::uint32_t index) noexcept;
  [[nodiscard]] QueueHeader& queue(std::uint32_t index) const noexcept;
  [[nodiscard]] QueueEndpoint* ends(std::uint32_t index) const noexcept;

  [[nodiscard]] GroupHeader& header(std::uint32_t index) const noexcept;
  [[nodiscard]] MemberBlock* members(std::uint32_t index) const noexcept;
  /// The channels of a group of `size` members.
  [[nodiscard]] Channel* channels(std::uint32_t index, int size) const noexcept;
  /// Blocks from this index on were never used. No more than there are, whatever stands in the segment.
  [[nodiscard]] std::uint32_t made() const noexcept;
  /// Members of a group's block and ends of a queue's, no more than the block has space for.
  [[nodiscard]] int member_count(std::uint32_t index) const noexcept;
  [[nodiscard]] int end_count(std::uint32_t index) const noexcept;
  /// The name of a group or queue.
  [[nodiscard]] std::string name(std::uint32_t index) const;
  /// `FormatError` unless block `index`, of which a peer has told, is that of a group of exactly these ranks of the
  /// node which `origin` announces.
  void require_group(std::uint32_t index, std::vector<int> const& members, Origin origin,
                     std::string const& operation) const;

 private:
  /// Whether a rank has departed; not so of a number that is no rank, as only proof makes a block garbage.
  [[nodiscard]] bool departed(std::uint32_t rank) const noexcept;
  [[nodiscard]] bool announced(GroupHeader const& group) const noexcept;
  [[nodiscard]] bool all_left(std::uint32_t index) const noexcept;
  [[nodiscard]] bool is_garbage(std::uint32_t index, BlockLife life) const noexcept;
  [[nodiscard]] bool queue_is_over(std::uint32_t index) const noexcept;
  /// Takes a block that is garbage, with its pages; the caller fills it.
  [[nodiscard]] std::uint32_t claim(std::size_t bytes, std::string const& name);
  /// Ends the making of a block.
  void open(std::uint32_t index, BlockState state) noexcept;
  void fill(std::uint32_t index, std::vector<int> const& members, std::string const& name, Origin origin) noexcept;
  void free(std::uint32_t index, BlockLife from) noexcept;

  std::byte* control_;
  ControlGeometry geometry_;
  int rank_;
  std::shared_ptr<platform::Fd> control_fd_;
};

}  // namespace crossrank::node
