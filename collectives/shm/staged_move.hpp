#pragma once
#include <cstdint>
#include <vector>

#include <crossrank/spi/transport.hpp>

#include "collectives/shm/staged_collective.hpp"
#include "lib/node/group/node_comm.hpp"
#include "lib/node/group/copy_batch.hpp"

namespace crossrank::shm {

/// Every operation that only moves bytes: streams from rank to rank, a piece of each in a step.
class StagedMove final : public StagedCollective {
 public:
  using Bytes = std::span<std::byte const>;
  using MutableBytes = std::span<std::byte>;
  /// Which part of each peer's area is for this rank.
  enum class Streams : std::uint8_t {
    shared,           ///< one, which all read
    per_destination,  ///< one for each rank
  };
  struct Arguments {
    Streams streams = Streams::shared;
    std::vector<Bytes> outgoing{};         ///< one, or one for each rank; none when this rank gives nothing
    std::vector<MutableBytes> incoming{};  ///< from each rank; empty where nothing is taken
    std::size_t longest = 0;               ///< of the streams of all ranks
    platform::StoreMode results = platform::StoreMode::normal;  ///< how to store what is taken
    spi::Source source{};                                       ///< keep the buffers alive
    spi::Sink sink{};
  };

  StagedMove(node::NodeComm& comm, int rank, Arguments arguments);
  [[nodiscard]] bool step(std::size_t number, AreaAllocator& own, PeerAreas const& peers) override;

 private:
  void put(std::size_t number, AreaAllocator& own, node::CopyBatch& copies) const;
  /// Whether the peers read this piece where it stands.
  [[nodiscard]] bool expose(std::size_t number, AreaAllocator& own) const;
  void take(std::size_t number, PeerAreas const& peers, node::CopyBatch& copies) const;

  node::NodeComm& comm_;
  std::size_t rank_;
  Arguments arguments_;
  std::size_t longest_;
  std::size_t piece_;  ///< of a stream in one step
};

/// all_to_allv: as a move with a stream for each rank, whose lengths the ranks tell each other in the first step.
class StagedExchange final : public StagedCollective {
 public:
  struct Arguments {
    std::vector<std::size_t> send{};     ///< bytes for each rank
    std::vector<std::size_t> receive{};  ///< bytes from each rank
    spi::Source in{};
    spi::Sink out{};
    platform::StoreMode results = platform::StoreMode::normal;  ///< how to store what is received
  };

  /// `group` is named in errors, and outlives this.
  StagedExchange(node::NodeComm& comm, std::string const& group, int rank, Arguments arguments);
  [[nodiscard]] bool step(std::size_t number, AreaAllocator& own, PeerAreas const& peers) override;

 private:
  void put(std::size_t number, AreaAllocator& own, node::CopyBatch& copies) const;
  void read_headers(PeerAreas const& peers);
  void take(std::size_t number, PeerAreas const& peers, node::CopyBatch& copies) const;
  /// Where in its area rank `from` puts what is for rank `to`.
  [[nodiscard]] std::size_t place(std::size_t from, std::size_t to, std::size_t number) const noexcept;
  [[nodiscard]] std::uint64_t& sends(std::size_t from, std::size_t to) noexcept { return table_[from * ranks_ + to]; }
  [[nodiscard]] std::uint64_t sends(std::size_t from, std::size_t to) const noexcept {
    return table_[from * ranks_ + to];
  }
  [[noreturn]] void disagree(std::size_t from, std::size_t to, std::uint64_t sent, std::uint64_t expected) const;

  node::NodeComm& comm_;
  std::string const& group_;
  std::size_t rank_;
  std::size_t ranks_;
  Arguments arguments_;
  std::size_t piece_;                 ///< of a stream in one step: what others send is not known at first
  std::size_t header_bytes_;          ///< of the first area: what the rank sends and expects
  std::vector<std::uint64_t> table_;  ///< bytes from each rank to each, then what each expects of each
  std::size_t longest_ = 0;
};

}  // namespace crossrank::shm
