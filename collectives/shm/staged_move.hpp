#pragma once
#include <cstdint>
#include <vector>

#include <crossrank/spi/transport.hpp>

#include "collectives/shm/staged_collective.hpp"
#include "lib/node/group/node_comm.hpp"
#include "lib/node/group/copy_batch.hpp"

namespace crossrank::shm {

/// An operation that only moves bytes: streams from rank to rank, one piece of each per step.
class StagedMove final : public StagedCollective {
 public:
  using Bytes = std::span<std::byte const>;
  using MutableBytes = std::span<std::byte>;
  /// Which part of each peer's area this rank reads.
  enum class Streams : std::uint8_t {
    shared,           ///< one, which all read
    per_destination,  ///< one for each rank
  };
  struct Arguments {
    Streams streams = Streams::shared;
    std::vector<Bytes> outgoing{};          ///< one stream, or one for each rank; empty if this rank sends nothing
    std::vector<MutableBytes> incoming{};   ///< by sender; empty where nothing is received
    std::size_t longest = 0;                ///< of the streams of all ranks
    StoreMode results = StoreMode::normal;  ///< how to store received bytes
    spi::Source source{};                   ///< keep the buffers alive
    spi::Sink sink{};
  };

  StagedMove(node::NodeComm& comm, int rank, Arguments arguments);
  [[nodiscard]] bool step(std::size_t number, AreaAllocator& own, PeerAreas const& peers) override;

 private:
  void put(std::size_t number, AreaAllocator& own, node::CopyBatch& copies) const;
  /// Returns whether the peers read this piece in place.
  [[nodiscard]] bool expose(std::size_t number, AreaAllocator& own) const;
  void take(std::size_t number, PeerAreas const& peers, node::CopyBatch& copies) const;

  node::NodeComm& comm_;
  std::size_t rank_;
  Arguments arguments_;
  std::size_t longest_;
  std::size_t piece_;  ///< of a stream in one step
};

/// all_to_allv: a move with one stream for each pair of ranks. The ranks exchange the lengths in the first step. Where
/// all are the same, as in all_to_all, no rank needs a table of them, which would have a row for each rank.
class StagedExchange final : public StagedCollective {
 public:
  struct Arguments {
    std::vector<std::size_t> send{};     ///< bytes for each rank
    std::vector<std::size_t> receive{};  ///< bytes from each rank
    spi::Source in{};
    spi::Sink out{};
    StoreMode results = StoreMode::normal;  ///< how to store received bytes
  };

  /// `group` is the name for errors; it must outlive this object.
  StagedExchange(node::NodeComm& comm, std::string const& group, int rank, Arguments arguments);
  [[nodiscard]] bool step(std::size_t number, AreaAllocator& own, PeerAreas const& peers) override;
  /// Returns the most bytes that a rank which sends `bytes` in all puts into its arena at once.
  [[nodiscard]] static std::size_t most_staged(std::size_t ranks, std::size_t bytes) noexcept;

 private:
  void put(std::size_t number, AreaAllocator& own, node::CopyBatch& copies) const;
  void read_headers(PeerAreas const& peers);
  void take(std::size_t number, PeerAreas const& peers, node::CopyBatch& copies) const;
  void read_table(PeerAreas const& peers);
  /// Returns the offset in the area of `from` at which the bytes for this rank begin.
  [[nodiscard]] std::size_t place(std::size_t from, std::size_t number) const noexcept;
  [[nodiscard]] std::uint64_t& sends(std::size_t from, std::size_t to) noexcept { return table_[from * ranks_ + to]; }
  [[nodiscard]] std::uint64_t sends(std::size_t from, std::size_t to) const noexcept {
    return table_[from * ranks_ + to];
  }

  node::NodeComm& comm_;
  std::string const& group_;
  std::size_t rank_;
  std::size_t ranks_;
  Arguments arguments_;
  std::size_t piece_;                   ///< of a stream in one step: what others send is not known at first
  std::size_t header_bytes_;            ///< at the beginning of the first area
  std::uint64_t own_equal_;             ///< 1 + the length of all streams of this rank; 0: they differ
  bool all_equal_ = false;              ///< all streams of all ranks have that length
  std::vector<std::uint64_t> table_{};  ///< bytes from each rank to each, then what each expects of each
  std::size_t longest_ = 0;
};

}  // namespace crossrank::shm
