#pragma once
#include <vector>

#include <crossrank/spi/transport.hpp>

#include "collectives/algorithms/reduce.hpp"
#include "collectives/shm/staged_collective.hpp"
#include "lib/node/group/node_comm.hpp"
#include "lib/node/group/copy_batch.hpp"

namespace crossrank::shm {

/// all_reduce and reduce. In each step a rank copies a piece of its values into its area, reduces its slice of the
/// previous piece, and copies the other ranks' slices of the piece before that.
class StagedAllReduce final : public StagedCollective {
 public:
  /// `out` is empty on a rank that receives no result; `results` says how to store there.
  StagedAllReduce(node::NodeComm& comm, int rank, int ranks, spi::Source in, spi::Sink out, StoreMode results,
                  algorithms::Reducer reduce);
  [[nodiscard]] bool step(std::size_t number, AreaAllocator& own, PeerAreas const& peers) override;

 private:
  struct Range {
    std::size_t begin = 0;  ///< in the piece
    std::size_t bytes = 0;
  };
  [[nodiscard]] std::size_t piece_size(std::size_t piece) const;
  /// Returns the slice of a piece that rank `member` reduces.
  [[nodiscard]] Range slice_of(std::size_t member, std::size_t piece) const;
  void put_values(std::size_t piece, Area area, node::CopyBatch& copies) const;
  void reduce_slice(std::size_t piece, Area area, PeerAreas const& peers);
  void take_results(std::size_t piece, PeerAreas const& peers, node::CopyBatch& copies) const;

  node::NodeComm& comm_;
  std::size_t rank_;
  std::size_t ranks_;
  spi::Source in_;
  spi::Sink out_;
  StoreMode results_;
  algorithms::Reducer reduce_;
  std::size_t slice_;  ///< most bytes of a slice
  std::size_t piece_;  ///< bytes of all slices together
  std::size_t pieces_;
  std::vector<std::byte const*> inputs_{};
};

/// reduce_scatterv. In each step a rank copies a piece of every other rank's part into its area, and reduces the
/// previous piece of its own part.
class StagedReduceScatter final : public StagedCollective {
 public:
  StagedReduceScatter(node::NodeComm& comm, int rank, std::vector<std::size_t> counts, spi::Source in, spi::Sink out,
                      algorithms::Reducer reduce);
  [[nodiscard]] bool step(std::size_t number, AreaAllocator& own, PeerAreas const& peers) override;

 private:
  void put(std::size_t number, AreaAllocator& own, node::CopyBatch& copies) const;
  void reduce(std::size_t number, PeerAreas const& peers);

  node::NodeComm& comm_;
  std::size_t rank_;
  std::vector<std::size_t> counts_;
  spi::Source in_;
  spi::Sink out_;
  algorithms::Reducer reduce_;
  std::size_t longest_;
  std::size_t piece_;
  std::vector<std::byte const*> inputs_{};
};

}  // namespace crossrank::shm
