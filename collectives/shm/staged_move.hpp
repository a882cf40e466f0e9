#pragma once
#include <cstdint>
#include <vector>

#include <crossrank/spi/transport.hpp>

#include "collectives/shm/staged.hpp"
#include "lib/node/domain.hpp"
#include "lib/node/peer_copy.hpp"

namespace crossrank::shm {

/// Every verb that only moves bytes: streams from rank to rank, a piece of each in a step.
class StagedMove final : public Staged {
 public:
  using Bytes = std::span<std::byte const>;
  using Room = std::span<std::byte>;
  /// Which part of each peer's area is for this rank.
  enum class Streams : std::uint8_t {
    shared,           ///< one, which all read
    per_destination,  ///< one for each rank
  };
  struct Plan {
    Streams streams = Streams::shared;
    std::vector<Bytes> outgoing{};  ///< one, or one for each rank; none when this rank gives nothing
    std::vector<Room> incoming{};   ///< from each rank; empty where nothing is taken
    std::size_t longest = 0;        ///< of the streams of all ranks
    platform::Stores results = platform::Stores::normal;  ///< how to store what is taken
    spi::Source source{};                                 ///< keep the buffers alive
    spi::Sink sink{};
  };

  StagedMove(node::NodeDomain& domain, int rank, Plan plan);
  [[nodiscard]] bool step(std::size_t number, OwnArea& own, PeerAreas const& peers) override;

 private:
  void put(std::size_t number, OwnArea& own, node::StepCopies& copies) const;
  /// Whether the peers read this piece where it stands.
  [[nodiscard]] bool lend(std::size_t number, OwnArea& own) const;
  void take(std::size_t number, PeerAreas const& peers, node::StepCopies& copies) const;

  node::NodeDomain& domain_;
  std::size_t rank_;
  Plan plan_;
  std::size_t longest_;
  std::size_t piece_;  ///< of a stream in one step
};

/// all_to_allv: as a move with a stream for each rank, whose lengths the ranks tell each other in the first step.
class StagedExchange final : public Staged {
 public:
  struct Plan {
    std::vector<std::size_t> send{};     ///< bytes for each rank
    std::vector<std::size_t> receive{};  ///< bytes from each rank
    spi::Source in{};
    spi::Sink out{};
    platform::Stores results = platform::Stores::normal;  ///< how to store what is received
  };

  /// `group` is named in errors, and outlives this.
  StagedExchange(node::NodeDomain& domain, std::string const& group, int rank, Plan plan);
  [[nodiscard]] bool step(std::size_t number, OwnArea& own, PeerAreas const& peers) override;

 private:
  void put(std::size_t number, OwnArea& own, node::StepCopies& copies) const;
  void read_headers(PeerAreas const& peers);
  void take(std::size_t number, PeerAreas const& peers, node::StepCopies& copies) const;
  /// Where in its area rank `from` puts what is for rank `to`.
  [[nodiscard]] std::size_t place(std::size_t from, std::size_t to, std::size_t number) const noexcept;
  [[nodiscard]] std::uint64_t& sends(std::size_t from, std::size_t to) noexcept { return table_[from * ranks_ + to]; }
  [[nodiscard]] std::uint64_t sends(std::size_t from, std::size_t to) const noexcept {
    return table_[from * ranks_ + to];
  }
  [[noreturn]] void disagree(std::size_t from, std::size_t to, std::uint64_t sent, std::uint64_t expected) const;

  node::NodeDomain& domain_;
  std::string const& group_;
  std::size_t rank_;
  std::size_t ranks_;
  Plan plan_;
  std::size_t piece_;                 ///< of a stream in one step: what others send is not known at first
  std::size_t header_bytes_;          ///< of the first area: what the rank sends and expects
  std::vector<std::uint64_t> table_;  ///< bytes from each rank to each, then what each expects of each
  std::size_t longest_ = 0;
};

}  // namespace crossrank::shm
